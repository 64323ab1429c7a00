//! An address that moves from one boss to another, as a machine's name does.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::Arc;
use tokio::net::UdpSocket;

/// A size in bytes that no packet exceeds.
const PACKET: usize = 1 << 16;

/// Carries packets from each worker to the boss that has the address, and from any boss back to the
/// worker.
pub struct Address {
    /// The port that workers send to.
    pub port: String,
    boss: Arc<AtomicU16>,
}

impl Address {
    /// Makes an address of the boss on this port.
    pub async fn of(boss: &str) -> Self {
        let socket = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
        let port = socket.local_addr().unwrap().port().to_string();
        let address = Address { port, boss: Arc::default() };
        address.points_to(boss);
        tokio::spawn(carry(socket, address.boss.clone()));
        address
    }

    /// Moves the address to the boss on this port.
    pub fn points_to(&self, boss: &str) {
        self.boss.store(boss.parse().unwrap(), Ordering::Relaxed);
    }
}

async fn carry(socket: Arc<UdpSocket>, boss: Arc<AtomicU16>) {
    let mut ways: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut packet = vec![0; PACKET];
    loop {
        let Ok((bytes, worker)) = socket.recv_from(&mut packet).await else { continue };
        let way = match ways.entry(worker) {
            Entry::Occupied(way) => way.into_mut(),
            Entry::Vacant(place) => {
                let way = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
                tokio::spawn(carry_back(way.clone(), socket.clone(), worker));
                place.insert(way)
            }
        };
        way.send_to(&packet[..bytes], (Ipv4Addr::LOCALHOST, boss.load(Ordering::Relaxed)))
            .await
            .ok();
    }
}

async fn carry_back(way: Arc<UdpSocket>, socket: Arc<UdpSocket>, worker: SocketAddr) {
    let mut packet = vec![0; PACKET];
    loop {
        if let Ok((bytes, _)) = way.recv_from(&mut packet).await {
            socket.send_to(&packet[..bytes], worker).await.ok();
        }
    }
}
