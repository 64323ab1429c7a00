//! Joins two TUN devices by a link with a delay and a rate: a packet sent to one end comes out at
//! the other end later.
//!
//! It is for systems whose kernel has no `netem`. The program ends when its standard input ends. A
//! line of input, such as `loss 0.05`, `cut`, `mbit 1` or `clear`, changes the link in both
//! directions.

use anyhow::{Context, Result};
use clap::Parser;
use std::time::Duration;

/// Joins two new TUN devices by a link with a delay and a rate, until standard input ends.
#[derive(Parser)]
struct Options {
    /// Names of the two devices. They may move to other network namespaces after the program prints
    /// "ready".
    #[arg(num_args = 2, required = true)]
    devices: Vec<String>,
    /// Delay each way, in milliseconds.
    #[arg(long)]
    ms: f64,
    /// Rate each way, in megabits a second.
    #[arg(long)]
    mbit: f64,
    /// The longest queue in front of the link, in milliseconds at its rate. Further packets are
    /// dropped.
    #[arg(long, default_value_t = 200.0)]
    queue_ms: f64,
    /// Seed from which `loss` draws the packets to drop.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Options {
    fn link(&self) -> Result<bench::link_model::Link> {
        anyhow::ensure!(self.mbit > 0.0, "--mbit {}: expected a rate above 0", self.mbit);
        let time = |ms: f64| {
            Duration::try_from_secs_f64(ms / 1e3).context("expected a time of 0 ms or more")
        };
        let now = std::time::Instant::now();
        Ok(bench::link_model::Link::new(time(self.ms)?, self.mbit * 1e6, time(self.queue_ms)?, now)
            .seed(self.seed))
    }
}

#[cfg(target_os = "linux")]
fn main() -> Result<()> {
    let options = Options::parse();
    let link = options.link()?;
    line::run(&options.devices[0], &options.devices[1], &link)
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<()> {
    Options::parse().link()?;
    anyhow::bail!("network namespaces are Linux's; there is nothing to join here")
}

#[cfg(target_os = "linux")]
mod line {
    use anyhow::{Context, Result};
    use bench::link_model::{Impairment, Link};
    use parking_lot::Mutex;
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;
    use tun_rs::{DeviceBuilder, SyncDevice};

    /// The MTU of an Ethernet network, so that transports choose the same packets as there.
    const MTU: u16 = 1500;

    type Packets = (Sender<(Instant, Vec<u8>)>, Receiver<(Instant, Vec<u8>)>);

    /// Makes the devices, prints "ready", and carries packets until standard input ends. Lines on
    /// standard input change the link.
    pub(crate) fn run(a: &str, b: &str, link: &Link) -> Result<()> {
        let (a, b) = (Arc::new(device(a)?), Arc::new(device(b)?));
        // Both directions are alike, but they do not lose the same packets.
        let links = [link.clone(), link.clone().reversed()].map(|link| Arc::new(Mutex::new(link)));
        for ((from, to), link) in [(&a, &b), (&b, &a)].into_iter().zip(&links) {
            let (from, to, link) = (Arc::clone(from), Arc::clone(to), Arc::clone(link));
            let (put, take): Packets = mpsc::channel();
            thread::spawn(move || pick_up(&from, &link, &put));
            thread::spawn(move || hand_over(&to, &take));
        }
        println!("ready");
        for line in std::io::stdin().lines() {
            let impairment: Impairment = line?.parse().map_err(anyhow::Error::msg)?;
            for link in &links {
                link.lock().impairment(impairment);
            }
        }
        Ok(())
    }

    fn device(name: &str) -> Result<SyncDevice> {
        let made = DeviceBuilder::new().name(name).mtu(MTU).build_sync();
        made.with_context(|| {
            format!("cannot make the TUN device {name}; it takes root and /dev/net/tun")
        })
    }

    /// Reads the packets that the system sends through a device, and sets when each comes out at
    /// the other end.
    fn pick_up(device: &SyncDevice, link: &Mutex<Link>, put: &Sender<(Instant, Vec<u8>)>) {
        let mut packet = [0; MTU as usize];
        loop {
            // A device that moves to another namespace is down for a moment.
            let Ok(length) = device.recv(&mut packet) else {
                thread::yield_now();
                continue;
            };
            let due = link.lock().send(Instant::now(), length);
            let Some(due) = due else { continue };
            if put.send((due, packet[..length].to_vec())).is_err() {
                return;
            }
        }
    }

    /// Passes packets to the other device when they are due. A packet that the system refuses is
    /// lost, as on a real link.
    fn hand_over(device: &SyncDevice, take: &Receiver<(Instant, Vec<u8>)>) {
        for (due, packet) in take {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            device.send(&packet).ok();
        }
    }
}
