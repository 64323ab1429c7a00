//! A network between two processes that silently drops packets above a size, as real networks do.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Two threads that forward packets. They end when this is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    largest: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy of `server` that drops packets of more than `largest` bytes.
    pub(crate) fn start(server: SocketAddr, largest: usize) -> Self {
        let socket = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            // So that the thread notices the end.
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            Arc::new(socket)
        };
        let (front, back) = (socket(), socket());
        let address = front.local_addr().unwrap();
        let client = Arc::new(Mutex::new(None));
        let (largest, ended) =
            (Arc::new(AtomicUsize::new(largest)), Arc::new(AtomicBool::new(false)));
        let pass = |from: Arc<UdpSocket>, to: Arc<UdpSocket>, is_front: bool| {
            let (client, largest, ended) = (client.clone(), largest.clone(), ended.clone());
            std::thread::spawn(move || {
                let mut packet = vec![0; 1 << 16];
                while !ended.load(Ordering::Relaxed) {
                    let Ok((len, sender)) = from.recv_from(&mut packet) else { continue };
                    if is_front {
                        *client.lock().unwrap() = Some(sender);
                    }
                    let receiver = if is_front { Some(server) } else { *client.lock().unwrap() };
                    if let Some(receiver) =
                        receiver.filter(|_| len <= largest.load(Ordering::Relaxed))
                    {
                        // A full buffer loses packets, too.
                        to.send_to(&packet[..len], receiver).ok();
                    }
                }
            })
        };
        let threads = vec![pass(front.clone(), back.clone(), true), pass(back, front, false)];
        Proxy { address, largest, ended, threads }
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the largest size that is not dropped.
    pub(crate) fn allow(&self, largest: usize) {
        self.largest.store(largest, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}
