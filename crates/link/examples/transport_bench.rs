//! Measures the bandwidth and the round trip of tensors between two processes of this machine. They
//! take the path of a run, from the ticket to the event for the session. Prints one line of JSON.
//!
//!     cargo run --release -p link --example transport_bench
//!
//! Bandwidth is that of 1 GiB sent one way, as frames of one tensor each, with at most 16 MiB in
//! flight. A round trip is a tensor sent and returned. Numbers are medians over `--runs` runs
//! (default 5).

use layerspec::DType;
use link::testing::TestConnection;
use link::{Identity, Listener, Payload, Ticket, Transport, WorkerInfo};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::{TensorHead, ToBoss};
use pipeline::TensorMeta;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command};
use std::time::Instant;

type Fallible<T> = Result<T, Box<dyn Error>>;

const SENT: usize = 1 << 30;
const IN_FLIGHT: usize = 16 << 20;
const ROUND_TRIPS: usize = 200;
const SENT_SIZES: [usize; 2] = [256 << 10, 4 << 20];
const RETURNED_SIZES: [usize; 3] = [1 << 10, 256 << 10, 4 << 20];

fn main() -> Fallible<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match text[..] {
        ["answer", address, ticket, transport] => {
            let transport = if transport == "quic" { Transport::Quic } else { Transport::Auto };
            runtime.block_on(answer(address.parse()?, &ticket.parse()?, transport))
        }
        ["--runs", runs] => runtime.block_on(measure(runs.parse()?)),
        [] => runtime.block_on(measure(5)),
        _ => Err("usage: transport_bench [--runs N]".into()),
    }
}

async fn measure(runs: usize) -> Fallible<()> {
    let mut pairs = Vec::new();
    for transport in ["quic", "shared memory"] {
        let keys = tempfile::tempdir()?;
        let identity = Identity::load_or_create_in(keys.path())?;
        let listener = Listener::open(&identity, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1)?;
        let mut child = Command::new(std::env::current_exe()?);
        child.args([
            "answer",
            &listener.address().to_string(),
            &identity.ticket().to_string(),
            transport,
        ]);
        let _other = Other(child.spawn()?);
        let mut wire = TestConnection::accept(listener).await.ok_or("nobody came")?;
        wire.receive().await?;
        for size in SENT_SIZES {
            let mut rates = Vec::new();
            for _ in 0..runs {
                rates.push(SENT as f64 / send(&mut wire, size).await? / 1e9);
            }
            rates.sort_by(f64::total_cmp);
            let (median, best) = (rates[rates.len() / 2], rates[rates.len() - 1]);
            pairs.push(format!(
                "\"{transport} {} GB/s\":{median:.2},\"{transport} {} best GB/s\":{best:.2}",
                kib(size),
                kib(size)
            ));
        }
        for size in RETURNED_SIZES {
            let mut times = round_trips(&mut wire, size, runs * ROUND_TRIPS).await?;
            times.sort_by(f64::total_cmp);
            let at = |share: f64| times[(times.len() as f64 * share) as usize] * 1e6;
            pairs.push(format!(
                "\"{transport} {} round trip p50 us\":{:.0},\"{transport} {} round trip p99 \
                 us\":{:.0}",
                kib(size),
                at(0.5),
                kib(size),
                at(0.99)
            ));
        }
        wire.close();
    }
    println!("{{{}}}", pairs.join(","));
    Ok(())
}

fn kib(size: usize) -> String {
    format!("{} KiB", size >> 10)
}

/// Measures the seconds until the other end has received everything.
async fn send(wire: &mut TestConnection<ToBoss>, size: usize) -> Fallible<f64> {
    let tensor = tensor(size);
    let count = SENT / size;
    let most = (IN_FLIGHT / size).max(2);
    let every = most / 2;
    wire.send(&head(count as u64, every as u32), &[])?;
    wire.receive().await?;
    let start = Instant::now();
    let mut received = 0;
    for sent in 0..count {
        while sent - received >= most {
            wire.receive().await?;
            received += every;
        }
        wire.send(&head(0, 0), std::slice::from_ref(&tensor))?;
    }
    while received < count {
        wire.receive().await?;
        received += every;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Measures the seconds of each round trip.
async fn round_trips(
    wire: &mut TestConnection<ToBoss>,
    size: usize,
    count: usize,
) -> Fallible<Vec<f64>> {
    let tensor = tensor(size);
    let mut times = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        wire.send(&head(0, 1), std::slice::from_ref(&tensor))?;
        let (_, back) = wire.receive().await?;
        times.push(start.elapsed().as_secs_f64());
        if back.first().map(|t| &t.bytes) != Some(&tensor.bytes) {
            return Err("a tensor came back other than it went".into());
        }
    }
    Ok(times)
}

/// Runs the other process: it counts frames, and returns those that ask for it.
async fn answer(address: SocketAddr, ticket: &Ticket, transport: Transport) -> Fallible<()> {
    let endpoint = link::worker_endpoint(ticket, &[address])?;
    let info = WorkerInfo { direct: false, process: std::process::id(), ..WorkerInfo::default() };
    let mut wire = TestConnection::dial(&endpoint, address, ticket, info, transport).await?;
    wire.send(&head(0, 0), &[])?;
    let mut expected = 0;
    let (mut count, mut every) = (0u64, 0u32);
    // Ends when the other end closes the connection.
    while let Ok((head, tensors)) = wire.receive().await {
        match head {
            TensorHead::Gradient { key, .. } if key.batch > 0 => {
                (expected, every, count) = (key.batch, key.index, 0);
                wire.send(&crate::head(0, 0), &[])?;
            }
            TensorHead::Gradient { key, .. } if key.index == 1 => {
                wire.send(&crate::head(0, 0), &tensors)?
            }
            _ => {
                drop(tensors);
                count += 1;
                if count % u64::from(every) == 0 || count == expected {
                    wire.send(&crate::head(0, 0), &[])?;
                }
            }
        }
    }
    Ok(())
}

fn tensor(size: usize) -> Payload {
    let bytes: Vec<u8> = (0..size).map(|i| (i * 31 + (i >> 12)) as u8).collect();
    Payload {
        meta: TensorMeta { dtype: DType::UInt8, shape: vec![size as u64] },
        bytes: bytes.into(),
    }
}

/// Makes the head of a frame that may carry a tensor. Its two numbers tell the other end what to
/// do.
fn head(batch: u64, index: u32) -> TensorHead {
    let key = MicrobatchKey { batch, index };
    TensorHead::Gradient { key, value: layerspec::ValueId(0), from: None, to: StageId(0) }
}

/// The other process, which ends when this is dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
