//! The endpoint of a boss, which the next run can take over.
//!
//! quinn releases a UDP socket only when the last connection on it has drained. That takes three
//! retransmission timeouts, which are many seconds after a machine or a network stood still. So a
//! run that ends because workers were lost retains its endpoint for a moment. A listener that is
//! opened for the same address takes it over.

use crate::error::LinkError;
use crate::quic::close_codes::DONE;
use crate::quic::endpoint;
use crate::quic::socket::SmallBuffers;
use crate::trust::identity::Identity;
use crate::trust::ticket::Ticket;
use parking_lot::Mutex;
use quinn::Endpoint;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tracing::debug;

/// The time for which an endpoint is retained for the next run. Another process that wants the port
/// waits a little longer for it.
const RETAIN_FOR: Duration = Duration::from_secs(3);

/// The retained endpoints. The tasks that own them end with their runtime, and so do the endpoints.
static RETAINED: Mutex<Vec<Weak<RetainedEndpoint>>> = Mutex::new(Vec::new());

/// An endpoint that workers call.
pub struct ListeningEndpoint {
    /// The QUIC endpoint.
    pub endpoint: Endpoint,
    /// Its address.
    pub address: SocketAddr,
    /// Set if the system gave smaller socket buffers than asked for.
    pub small_buffers: Option<SmallBuffers>,
    ticket: Ticket,
}

struct RetainedEndpoint {
    address: SocketAddr,
    ticket: Ticket,
    listening: Mutex<Option<ListeningEndpoint>>,
    taken: Notify,
}

impl ListeningEndpoint {
    /// Listens at an address, if possible with the endpoint of an earlier run.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn open(identity: &Identity, address: SocketAddr) -> Result<Self, LinkError> {
        if let Some(listening) = take_retained(identity, address) {
            debug!(%address, "endpoint of the last run taken over");
            return Ok(listening);
        }
        let (endpoint, small_buffers) = endpoint::listen(identity, address)?;
        let address = endpoint
            .local_addr()
            .map_err(|e| LinkError::Socket { address, reason: e.to_string() })?;
        Ok(ListeningEndpoint {
            endpoint,
            address,
            small_buffers,
            ticket: identity.ticket().clone(),
        })
    }

    /// Retains the endpoint for the next run. Its connections must be closed.
    pub fn retain_for_next_run(self) {
        let endpoint = self.endpoint.clone();
        let (address, ticket) = (self.address, self.ticket.clone());
        let retained = RetainedEndpoint {
            address,
            ticket,
            listening: Mutex::new(Some(self)),
            taken: Notify::new(),
        };
        let retained = Arc::new(retained);
        retained_endpoints().push(Arc::downgrade(&retained));
        tokio::spawn(async move {
            tokio::select! {
                () = retained.taken.notified() => return,
                () = tokio::time::sleep(RETAIN_FOR) => {}
                () = defer_callers(&endpoint) => {}
            }
            // Another run may have taken the endpoint over in this very moment.
            if retained.listening.lock().take().is_some() {
                endpoint.close(DONE, b"the boss left the run");
            }
        });
    }
}

/// Makes callers call again later, so that they do not fill this process's memory. Ends when the
/// endpoint is closed.
async fn defer_callers(endpoint: &Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        if incoming.remote_address_validated() {
            incoming.ignore();
        } else {
            incoming.retry().ok();
        }
    }
}

fn retained_endpoints() -> parking_lot::MutexGuard<'static, Vec<Weak<RetainedEndpoint>>> {
    RETAINED.lock()
}

fn take_retained(identity: &Identity, address: SocketAddr) -> Option<ListeningEndpoint> {
    let mut all = retained_endpoints();
    all.retain(|retained| retained.strong_count() > 0);
    let is_same = |one: SocketAddr| {
        // A system without IPv6 gave another address for all.
        let ips = [one.ip(), address.ip()];
        one.port() == address.port() && (ips[0] == ips[1] || ips.iter().all(IpAddr::is_unspecified))
    };
    let matches = |retained: &Arc<RetainedEndpoint>| {
        is_same(retained.address) && retained.ticket == *identity.ticket()
    };
    all.iter().filter_map(Weak::upgrade).filter(matches).find_map(|retained| {
        let listening = retained.listening.lock().take()?;
        retained.taken.notify_one();
        Some(listening)
    })
}
