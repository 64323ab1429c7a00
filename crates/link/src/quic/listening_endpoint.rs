//! The endpoint of a boss, kept from one run to the next.
//!
//! quinn lets go of a UDP socket only once the last connection on it has drained. That takes three times as long as an answer
//! may take, which are many seconds where a machine or a line has stood still for a while. So a run that ends because workers
//! were lost leaves its endpoint behind for a moment, and a listener that is opened for the same address takes it over.

use crate::error::LinkError;
use crate::quic::close_codes::DONE;
use crate::quic::endpoint;
use crate::quic::socket::SmallBuffers;
use crate::trust::identity::Identity;
use crate::trust::ticket::Ticket;
use parking_lot::Mutex;
use quinn::Endpoint;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// The time within which a run that continues takes the endpoint over. Another process that wants
/// the port waits a little longer for it.
const RETAIN_FOR: Duration = Duration::from_secs(3);

/// What was left behind, as long as the tasks are there that have it: they end with their runtime, and so do its endpoints.
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
    /// Listens at this address, if possible with the endpoint of an earlier run.
    pub fn open(identity: &Identity, address: SocketAddr) -> Result<Self, LinkError> {
        if let Some(listening) = take_retained(identity, address) {
            return Ok(listening);
        }
        let (endpoint, small_buffers) = endpoint::listen(identity, address)?;
        let address = endpoint.local_addr().map_err(|e| LinkError::Socket { address, reason: e.to_string() })?;
        Ok(ListeningEndpoint { endpoint, address, small_buffers, ticket: identity.ticket().clone() })
    }

    /// Leaves it behind. Its connections must have been closed.
    pub fn retain_for_next_run(self) {
        let endpoint = self.endpoint.clone();
        let (address, ticket) = (self.address, self.ticket.clone());
        let kept = RetainedEndpoint { address, ticket, listening: Mutex::new(Some(self)), taken: Notify::new() };
        let kept = Arc::new(kept);
        all().push(Arc::downgrade(&kept));
        tokio::spawn(async move {
            tokio::select! {
                () = kept.taken.notified() => return,
                () = tokio::time::sleep(RETAIN_FOR) => {}
                () = defer_callers(&endpoint) => {}
            }
            // Unless it was taken over in this very moment.
            if kept.listening.lock().take().is_some() {
                endpoint.close(DONE, b"the boss left the run");
            }
        });
    }
}

/// Has whoever calls meanwhile call again, so that no crowd waits in memory; ends where nobody can be heard any more.
async fn defer_callers(endpoint: &Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        match incoming.remote_address_validated() {
            true => incoming.ignore(),
            false => drop(incoming.retry()),
        }
    }
}

fn all() -> parking_lot::MutexGuard<'static, Vec<Weak<RetainedEndpoint>>> {
    RETAINED.lock()
}

fn take_retained(identity: &Identity, address: SocketAddr) -> Option<ListeningEndpoint> {
    let mut all = all();
    all.retain(|kept| kept.strong_count() > 0);
    let of_here = |kept: &Arc<RetainedEndpoint>| kept.address == address && kept.ticket == *identity.ticket();
    all.iter().filter_map(Weak::upgrade).filter(of_here).find_map(|kept| {
        let listening = kept.listening.lock().take()?;
        kept.taken.notify_one();
        Some(listening)
    })
}
