//! Who comes in: finishes handshakes and reads greetings, each in a task of its own, so that a slow
//! or silent caller holds nobody up.

use crate::error::LinkError;
use crate::quic::endpoint::Callers;
use crate::trust::handshake::{self, Handshake, Reply};
use quinn::{Endpoint, RecvStream, SendStream};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, Semaphore};

/// Handshakes at a time; more callers wait.
const AT_A_TIME: usize = 64;
/// Of one address; who is one too many is not heard, and calls again, so that a crowd in one place keeps nobody waiting who is
/// elsewhere.
const OF_ONE_ADDRESS: usize = 48;
/// A caller that has not greeted after this long is turned away.
const PATIENCE: Duration = Duration::from_secs(5);

/// A caller that has proven that it holds the ticket and has said who it is.
pub struct Arrival {
    /// The connection to it.
    pub quic: quinn::Connection,
    /// Our half of the control stream.
    pub send: SendStream,
    /// Its half of the control stream.
    pub recv: RecvStream,
    /// What it said of itself.
    pub handshake: Handshake,
}

/// The result of accepting one caller.
pub enum Accept {
    /// The caller may be admitted.
    Arrived(Arrival),
    /// The caller was refused.
    TurnedAway {
        /// Where it calls from.
        address: SocketAddr,
        /// Why it was refused.
        reason: String,
    },
}

impl Arrival {
    /// Says no to a worker that comes when every place is taken.
    pub fn refuse_late(self, places: usize) {
        self.refuse(format!("the run has all its {places} workers"), true);
    }

    /// Answers who only wanted to know how the run stands.
    pub fn show(mut self, status: String) {
        tokio::spawn(async move {
            if handshake::write(&mut self.send, &Reply::Stands(status)).await.is_ok() {
                self.send.finish().ok();
                tokio::time::timeout(PATIENCE, self.quic.closed()).await.ok();
            }
        });
    }

    /// Says no; the connection ends once the caller has heard it.
    pub fn refuse(mut self, reason: String, retry: bool) {
        tokio::spawn(async move {
            if handshake::write(&mut self.send, &Reply::Refused { reason, retry }).await.is_ok() {
                self.send.finish().ok();
                // The caller closes when it has read the answer.
                tokio::time::timeout(PATIENCE, self.quic.closed()).await.ok();
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
    pub fn open(endpoint: Endpoint, callers: Callers) -> Self {
        let (sender, accepted) = mpsc::channel(AT_A_TIME);
        let places = Arc::new(Semaphore::new(AT_A_TIME));
        let by_address = ByAddress::default();
        let task = tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                // Whoever names a false address never hears of this, and so takes no place.
                if !incoming.remote_address_validated() {
                    incoming.retry().ok();
                    continue;
                }
                let address = incoming.remote_address();
                let Some(of_address) = OfAddress::take(&by_address, address.ip()) else {
                    incoming.ignore();
                    continue;
                };
                let Ok(place) = places.clone().acquire_owned().await else { return };
                let sender = sender.clone();
                let connecting = incoming.accept_with(callers.config(address));
                tokio::spawn(async move {
                    let accept = match tokio::time::timeout(PATIENCE, greet(connecting)).await {
                        Ok(Ok(arrival)) => Accept::Arrived(arrival),
                        Ok(Err(e)) => Accept::TurnedAway { address, reason: e.to_string() },
                        Err(_) => Accept::TurnedAway { address, reason: "it did not greet within 5 seconds".into() },
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

/// How many handshakes there are of each address.
type ByAddress = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// One of the handshakes of an address, until it is dropped.
struct OfAddress(ByAddress, IpAddr);

impl OfAddress {
    /// Nothing where there are as many as may be.
    fn take(all: &ByAddress, address: IpAddr) -> Option<Self> {
        let mut counts = all.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count == OF_ONE_ADDRESS {
            return None;
        }
        *count += 1;
        Some(OfAddress(all.clone(), address))
    }
}

impl Drop for OfAddress {
    fn drop(&mut self) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

async fn greet(connecting: Result<quinn::Connecting, quinn::ConnectionError>) -> Result<Arrival, LinkError> {
    let stranger = |e: quinn::ConnectionError| LinkError::Refused {
        reason: format!("it has no valid ticket, or does not speak BossMan ({e})"),
        retry: false,
    };
    let quic = connecting.map_err(stranger)?.await.map_err(stranger)?;
    let (mut send, mut recv) = quic.accept_bi().await.map_err(stranger)?;
    match handshake::read(&mut recv).await {
        Ok(handshake) => Ok(Arrival { quic, send, recv, handshake }),
        Err(e) => {
            // The answer starts with our version, so a caller of another one can name both.
            let reply = Reply::Refused { reason: e.to_string(), retry: false };
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
        let (all, crowd, other) = (ByAddress::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut here: Vec<_> = (0..AT_A_TIME).map_while(|_| OfAddress::take(&all, crowd)).collect();
        assert_eq!(here.len(), OF_ONE_ADDRESS);
        assert!(OF_ONE_ADDRESS < AT_A_TIME && OfAddress::take(&all, other).is_some());
        here.pop();
        assert!(OfAddress::take(&all, crowd).is_some());
        here.clear();
        assert!(all.lock().unwrap().is_empty());
    }
}
