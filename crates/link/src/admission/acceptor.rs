//! Accepts callers. Each TLS and BossMan handshake runs in a task of its own, so that a slow or
//! silent caller delays nobody.

use crate::admission::handshake::{self, Handshake, HandshakeReply};
use crate::admission::status_text::StatusText;
use crate::connection::EstablishedConnection;
use crate::quic::close_codes::DONE;
use crate::quic::endpoint::AcceptPolicy;
use crate::quic::network_path::canonical;
use parking_lot::Mutex;
use quinn::{Connecting, ConnectionError, Endpoint, Incoming, TransportErrorCode};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, Semaphore};
use tracing::{debug, info, Instrument};

/// The most handshakes at a time. Further callers are ignored, and call again.
const MAX_HANDSHAKES: usize = 128;
/// The most handshakes with one address at a time. Further callers are ignored, too. Crowds
/// at two addresses, such as IPv4 and IPv6 of one host, then delay nobody at another.
const MAX_HANDSHAKES_PER_ADDRESS: usize = 48;
/// A caller that has not sent its handshake after this long is rejected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A caller that has proven that it holds the ticket, and has sent its handshake.
pub struct Caller {
    /// The connection to it.
    pub connection: EstablishedConnection,
    /// Its handshake.
    pub handshake: Handshake,
}

/// The result of accepting one caller.
pub enum Accept {
    /// The caller may be admitted.
    Authenticated(Box<Caller>),
    /// The caller was rejected.
    Rejected {
        /// Its address.
        address: SocketAddr,
        /// Why it was rejected.
        reason: String,
    },
}

impl Caller {
    /// Its address.
    pub fn address(&self) -> SocketAddr {
        canonical(self.connection.quic.remote_address())
    }

    /// Refuses a worker for which the run has no place now.
    pub fn refuse_full(self, places: usize) {
        self.refuse_until_later(format!("the run has all its {places} workers"));
    }

    /// Answers a caller that asked for the status of the run.
    pub fn send_status(self, status: &StatusText) {
        self.reply_and_close(HandshakeReply::Status(status.text()));
    }

    /// Refuses a caller that must not call again. The connection ends once the caller has read the
    /// reason.
    pub fn refuse(self, reason: String) {
        info!(address = %self.address(), reason, "caller refused");
        self.reply_and_close(HandshakeReply::Refused { reason, retry: false });
    }

    /// Refuses a caller that may call again later.
    pub fn refuse_until_later(self, reason: String) {
        info!(address = %self.address(), reason, "caller refused for now");
        self.reply_and_close(HandshakeReply::Refused { reason, retry: true });
    }

    fn reply_and_close(self, reply: HandshakeReply) {
        let EstablishedConnection { quic, mut send, .. } = self.connection;
        tokio::spawn(async move {
            let read = async {
                if handshake::write(&mut send, &reply).await.is_ok() {
                    send.finish().ok();
                    // The caller closes the connection when it has read the answer.
                    quic.closed().await;
                }
            };
            tokio::time::timeout(HANDSHAKE_TIMEOUT, read).await.ok();
        });
    }
}

/// Accepts the callers of an endpoint until it is dropped.
pub struct Acceptor {
    accepted: mpsc::Receiver<Accept>,
    task: tokio::task::JoinHandle<()>,
}

impl Acceptor {
    /// Starts to accept callers.
    pub fn open(endpoint: Endpoint, policy: AcceptPolicy) -> Self {
        let (sender, accepted) = mpsc::channel(MAX_HANDSHAKES);
        let task = tokio::spawn(accept_callers(endpoint, policy, sender).in_current_span());
        Acceptor { accepted, task }
    }

    /// The next caller. Cancel safe.
    pub async fn next(&mut self) -> Option<Accept> {
        self.accepted.recv().await
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept_callers(endpoint: Endpoint, policy: AcceptPolicy, sender: mpsc::Sender<Accept>) {
    let permits = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let by_address = HandshakesByAddress::default();
    while let Some(incoming) = endpoint.accept().await {
        // A caller with a false address never receives the retry, and so takes no permit.
        if !incoming.remote_address_validated() {
            incoming.retry().ok();
            continue;
        }
        let address = canonical(incoming.remote_address());
        let Some(of_address) = AddressPermit::acquire(&by_address, network(address.ip())) else {
            debug!(%address, "caller ignored: too many handshakes with its address");
            incoming.ignore();
            continue;
        };
        // To wait for a permit here would keep those from joining whose handshake takes no time.
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            debug!(%address, "caller ignored: too many handshakes");
            incoming.ignore();
            continue;
        };
        let (sender, config) = (sender.clone(), policy.config(address));
        let accepting = async move {
            if let Some(accept) = accept(incoming, config).await {
                sender.send(accept).await.ok();
            }
            drop((permit, of_address));
        };
        tokio::spawn(accepting.in_current_span());
    }
}

/// The address of a host. With IPv6 a host has usually all addresses of a /64 network.
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// `None` if the caller gave up. A worker dials all addresses of the boss, and keeps the first
/// connection.
async fn accept(incoming: Incoming, config: Arc<quinn::ServerConfig>) -> Option<Accept> {
    let address = canonical(incoming.remote_address());
    let authenticated = authenticate(incoming.accept_with(config));
    let reason = match tokio::time::timeout(HANDSHAKE_TIMEOUT, authenticated).await {
        Ok(Ok(caller)) => {
            debug!(%address, kind = caller.handshake.kind(), "caller accepted");
            return Some(Accept::Authenticated(Box::new(caller)));
        }
        Ok(Err(Unauthenticated::GaveUp)) => {
            debug!(%address, "caller gave up");
            return None;
        }
        Ok(Err(Unauthenticated::Rejected(reason))) => reason,
        Err(_) => "it sent no handshake within 5 seconds".into(),
    };
    info!(%address, reason, "caller rejected");
    Some(Accept::Rejected { address, reason })
}

/// Why a caller has not been authenticated.
enum Unauthenticated {
    /// It closed the connection before its handshake.
    GaveUp,
    Rejected(String),
}

impl From<ConnectionError> for Unauthenticated {
    fn from(e: ConnectionError) -> Self {
        match e {
            ConnectionError::ApplicationClosed(closed) if closed.error_code == DONE => {
                Unauthenticated::GaveUp
            }
            // The same before the end of the TLS handshake (RFC 9000, section 10.2.3).
            ConnectionError::ConnectionClosed(closed)
                if closed.error_code == TransportErrorCode::APPLICATION_ERROR =>
            {
                Unauthenticated::GaveUp
            }
            e => Unauthenticated::Rejected(format!(
                "it has no valid ticket, or does not speak BossMan ({e})"
            )),
        }
    }
}

async fn authenticate(
    connecting: Result<Connecting, ConnectionError>,
) -> Result<Caller, Unauthenticated> {
    let quic = connecting?.await?;
    let (mut send, mut recv) = quic.accept_bi().await?;
    match handshake::read(&mut recv).await {
        Ok(handshake) => {
            let connection = EstablishedConnection { quic, send, recv };
            Ok(Caller { connection, handshake })
        }
        Err(e) => {
            // The reply starts with our version, so a caller of another version can name both.
            let reply = HandshakeReply::Refused { reason: e.to_string(), retry: false };
            handshake::write(&mut send, &reply).await.ok();
            send.finish().ok();
            quic.closed().await;
            Err(Unauthenticated::Rejected(e.to_string()))
        }
    }
}

/// The number of handshakes with each address.
type HandshakesByAddress = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// Counts as one handshake with an address until it is dropped.
struct AddressPermit {
    counts: HandshakesByAddress,
    address: IpAddr,
}

impl AddressPermit {
    /// Returns `None` if the address has the most handshakes that it may have.
    fn acquire(counts: &HandshakesByAddress, address: IpAddr) -> Option<Self> {
        let mut locked = counts.lock();
        let count = locked.entry(address).or_default();
        if *count == MAX_HANDSHAKES_PER_ADDRESS {
            return None;
        }
        *count += 1;
        Some(AddressPermit { counts: counts.clone(), address })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Entry::Occupied(mut count) = counts.entry(self.address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_all_addresses_of_its_network() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    /// JOIN-5.
    #[test]
    fn a_crowd_of_one_address_leaves_places_for_others() {
        let (all, crowd, other) = (
            HandshakesByAddress::default(),
            IpAddr::from([10, 0, 0, 1]),
            IpAddr::from([10, 0, 0, 2]),
        );
        let mut here: Vec<_> =
            (0..MAX_HANDSHAKES).map_while(|_| AddressPermit::acquire(&all, crowd)).collect();
        assert_eq!(here.len(), MAX_HANDSHAKES_PER_ADDRESS);
        assert!(
            MAX_HANDSHAKES_PER_ADDRESS < MAX_HANDSHAKES
                && AddressPermit::acquire(&all, other).is_some()
        );
        here.pop();
        assert!(AddressPermit::acquire(&all, crowd).is_some());
        here.clear();
        assert!(all.lock().is_empty());
    }
}
