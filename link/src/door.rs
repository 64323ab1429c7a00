//! Who comes in: finishes handshakes and reads greetings, each in a task of its own, so that a slow
//! or silent caller holds nobody up.

use crate::endpoint::Callers;
use crate::error::LinkError;
use crate::hello::{self, Hello, Reply};
use quinn::{Endpoint, RecvStream, SendStream};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, Semaphore};

/// Handshakes at a time; more callers wait.
const AT_A_TIME: usize = 64;
/// A caller that has not greeted after this long is turned away.
const PATIENCE: Duration = Duration::from_secs(5);

/// A caller that has proven that it holds the ticket and has said who it is.
pub(crate) struct Arrival {
    pub(crate) quic: quinn::Connection,
    pub(crate) send: SendStream,
    pub(crate) recv: RecvStream,
    pub(crate) hello: Hello,
}

/// What happens at the door.
pub(crate) enum Knock {
    Arrived(Arrival),
    /// Nobody to let in, and why.
    TurnedAway {
        address: SocketAddr,
        reason: String,
    },
}

impl Arrival {
    /// Says no to a worker that comes when every place is taken.
    pub(crate) fn refuse_late(self, places: usize) {
        self.refuse(format!("the run has all its {places} workers"), true);
    }

    /// Answers who only wanted to know how the run stands.
    pub(crate) fn show(mut self, status: String) {
        tokio::spawn(async move {
            if hello::write(&mut self.send, &Reply::Stands(status)).await.is_ok() {
                self.send.finish().ok();
                tokio::time::timeout(PATIENCE, self.quic.closed()).await.ok();
            }
        });
    }

    /// Says no; the connection ends once the caller has heard it.
    pub(crate) fn refuse(mut self, reason: String, retry: bool) {
        tokio::spawn(async move {
            if hello::write(&mut self.send, &Reply::Refused { reason, retry }).await.is_ok() {
                self.send.finish().ok();
                // The caller closes when it has read the answer.
                tokio::time::timeout(PATIENCE, self.quic.closed()).await.ok();
            }
        });
    }
}

/// The task that watches an endpoint; it ends when this is dropped.
pub(crate) struct Door {
    knocks: mpsc::Receiver<Knock>,
    task: tokio::task::JoinHandle<()>,
}

impl Door {
    pub(crate) fn open(endpoint: Endpoint, callers: Callers) -> Self {
        let (sender, knocks) = mpsc::channel(AT_A_TIME);
        let places = Arc::new(Semaphore::new(AT_A_TIME));
        let task = tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                // Whoever names a false address never hears of this, and so takes no place.
                if !incoming.remote_address_validated() {
                    incoming.retry().ok();
                    continue;
                }
                let Ok(place) = places.clone().acquire_owned().await else { return };
                let sender = sender.clone();
                let address = incoming.remote_address();
                let connecting = incoming.accept_with(callers.config(address));
                tokio::spawn(async move {
                    let knock = match tokio::time::timeout(PATIENCE, greet(connecting)).await {
                        Ok(Ok(arrival)) => Knock::Arrived(arrival),
                        Ok(Err(e)) => Knock::TurnedAway { address, reason: e.to_string() },
                        Err(_) => Knock::TurnedAway { address, reason: "it did not greet within 5 seconds".into() },
                    };
                    sender.send(knock).await.ok();
                    drop(place);
                });
            }
        });
        Door { knocks, task }
    }

    /// The next caller. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Knock> {
        self.knocks.recv().await
    }
}

impl Drop for Door {
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
    match hello::read(&mut recv).await {
        Ok(hello) => Ok(Arrival { quic, send, recv, hello }),
        Err(e) => {
            // The answer starts with our version, so a caller of another one can name both.
            let reply = Reply::Refused { reason: e.to_string(), retry: false };
            hello::write(&mut send, &reply).await.ok();
            send.finish().ok();
            quic.closed().await;
            Err(e)
        }
    }
}
