//! Accepts callers: finishes handshakes and reads greetings, each in a task of its own, so that a
//! slow or silent caller holds nobody up.

use crate::error::LinkError;
use crate::quic::endpoint::AcceptPolicy;
use crate::trust::handshake::{self, Handshake, HandshakeReply};
use parking_lot::Mutex;
use quinn::{Endpoint, RecvStream, SendStream};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, Semaphore};

/// Handshakes at a time; more callers wait.
const MAX_HANDSHAKES: usize = 64;
/// Of one address; who is one too many is not heard, and calls again, so that a crowd in one place keeps nobody waiting who is
/// elsewhere.
const MAX_HANDSHAKES_PER_ADDRESS: usize = 48;
/// A caller that has not greeted after this long is turned away.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A caller that has proven that it holds the ticket and has said who it is.
pub struct Caller {
    /// The connection to it.
    pub quic: quinn::Connection,
    /// Our half of the control stream.
    pub send: SendStream,
    /// Its half of the control stream.
    pub recv: RecvStream,
    /// Its own statement.
    pub handshake: Handshake,
}

/// The result of accepting one caller.
pub enum Accept {
    /// The caller may be admitted.
    Authenticated(Caller),
    /// The caller was refused.
    Rejected {
        /// Its address.
        address: SocketAddr,
        /// Why it was refused.
        reason: String,
    },
}

impl Caller {
    /// Says no to a worker that comes when every place is taken.
    pub fn refuse_full(self, places: usize) {
        self.refuse(format!("the run has all its {places} workers"), true);
    }

    /// Answers who only wanted to know how the run stands.
    pub fn send_status(mut self, status: String) {
        tokio::spawn(async move {
            if handshake::write(&mut self.send, &HandshakeReply::Status(status)).await.is_ok() {
                self.send.finish().ok();
                tokio::time::timeout(HANDSHAKE_TIMEOUT, self.quic.closed()).await.ok();
            }
        });
    }

    /// Says no; the connection ends once the caller has heard it.
    pub fn refuse(mut self, reason: String, retry: bool) {
        tokio::spawn(async move {
            if handshake::write(&mut self.send, &HandshakeReply::Refused { reason, retry }).await.is_ok() {
                self.send.finish().ok();
                // The caller closes when it has read the answer.
                tokio::time::timeout(HANDSHAKE_TIMEOUT, self.quic.closed()).await.ok();
            }
        });
    }
}

/// The task that watches an endpoint; it ends when this is dropped.
pub struct Acceptor {
    accepted: mpsc::Receiver<Accept>,
    task: tokio::task::JoinHandle<()>,
}

impl Acceptor {
    /// Starts to accept callers of an endpoint.
    pub fn open(endpoint: Endpoint, callers: AcceptPolicy) -> Self {
        let (sender, accepted) = mpsc::channel(MAX_HANDSHAKES);
        let places = Arc::new(Semaphore::new(MAX_HANDSHAKES));
        let by_address = HandshakesByAddress::default();
        let task = tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                // A caller with a false address never receives the retry, and so takes no place.
                if !incoming.remote_address_validated() {
                    incoming.retry().ok();
                    continue;
                }
                let address = incoming.remote_address();
                let Some(of_address) = AddressPermit::acquire(&by_address, address.ip()) else {
                    incoming.ignore();
                    continue;
                };
                let Ok(place) = places.clone().acquire_owned().await else { return };
                let sender = sender.clone();
                let connecting = incoming.accept_with(callers.config(address));
                tokio::spawn(async move {
                    let accept = match tokio::time::timeout(HANDSHAKE_TIMEOUT, authenticate(connecting)).await {
                        Ok(Ok(caller)) => Accept::Authenticated(caller),
                        Ok(Err(e)) => Accept::Rejected { address, reason: e.to_string() },
                        Err(_) => Accept::Rejected { address, reason: "it did not greet within 5 seconds".into() },
                    };
                    sender.send(accept).await.ok();
                    drop((place, of_address));
                });
            }
        });
        Acceptor { accepted, task }
    }

    /// The next caller. Cancel safe.
    pub async fn next(&mut self) -> Option<Accept> {
        self.accepted.recv().await
    }
}

/// The number of handshakes from each address.
type HandshakesByAddress = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// One of the handshakes of an address, until it is dropped.
struct AddressPermit(HandshakesByAddress, IpAddr);

impl AddressPermit {
    /// `None` if the limit is reached.
    fn acquire(all: &HandshakesByAddress, address: IpAddr) -> Option<Self> {
        let mut counts = all.lock();
        let count = counts.entry(address).or_default();
        if *count == MAX_HANDSHAKES_PER_ADDRESS {
            return None;
        }
        *count += 1;
        Some(AddressPermit(all.clone(), address))
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut counts = self.0.lock();
        if let Entry::Occupied(mut count) = counts.entry(self.1) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn authenticate(connecting: Result<quinn::Connecting, quinn::ConnectionError>) -> Result<Caller, LinkError> {
    let stranger = |e: quinn::ConnectionError| LinkError::Refused {
        reason: format!("it has no valid ticket, or does not speak BossMan ({e})"),
        retry: false,
    };
    let quic = connecting.map_err(stranger)?.await.map_err(stranger)?;
    let (mut send, mut recv) = quic.accept_bi().await.map_err(stranger)?;
    match handshake::read(&mut recv).await {
        Ok(handshake) => Ok(Caller { quic, send, recv, handshake }),
        Err(e) => {
            // The answer starts with our version, so a caller of another one can name both.
            let reply = HandshakeReply::Refused { reason: e.to_string(), retry: false };
            handshake::write(&mut send, &reply).await.ok();
            send.finish().ok();
            quic.closed().await;
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_one_address_leaves_places_for_others() {
        let (all, crowd, other) =
            (HandshakesByAddress::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut here: Vec<_> = (0..MAX_HANDSHAKES).map_while(|_| AddressPermit::acquire(&all, crowd)).collect();
        assert_eq!(here.len(), MAX_HANDSHAKES_PER_ADDRESS);
        assert!(MAX_HANDSHAKES_PER_ADDRESS < MAX_HANDSHAKES && AddressPermit::acquire(&all, other).is_some());
        here.pop();
        assert!(AddressPermit::acquire(&all, crowd).is_some());
        here.clear();
        assert!(all.lock().is_empty());
    }
}
