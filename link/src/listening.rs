//! Where a boss listens, also from one run to the next.
//!
//! quinn lets go of a UDP socket only once the last connection on it has drained. That takes three times as long as an answer
//! may take, which are many seconds where a machine or a line has stood still for a while. So a run that ends because workers
//! were lost leaves its endpoint behind for a little while, and a lobby that is opened for the same address takes it over.
//! Whoever calls in between waits there.

use crate::connection::DONE;
use crate::endpoint;
use crate::error::LinkError;
use crate::identity::Identity;
use crate::socket::SmallBuffers;
use crate::ticket::Ticket;
use quinn::Endpoint;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// A run that goes on does so by then.
const KEEP: Duration = Duration::from_secs(10);

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// An endpoint that workers call.
pub(crate) struct Listening {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: SocketAddr,
    pub(crate) small_buffers: Option<SmallBuffers>,
    ticket: Ticket,
}

struct Kept {
    listening: Listening,
    /// Gone with the runtime that the endpoint needs.
    alive: Weak<()>,
}

impl Listening {
    /// Listens at this address, where it can with what a run has left behind.
    pub(crate) fn at(identity: &Identity, address: SocketAddr) -> Result<Self, LinkError> {
        if let Some(kept) =
            take(|Kept { listening, .. }| listening.address == address && listening.ticket == *identity.ticket())
        {
            return Ok(kept);
        }
        let (endpoint, small_buffers) = endpoint::listen(identity, address)?;
        let address = endpoint.local_addr().map_err(|e| LinkError::Socket { address, reason: e.to_string() })?;
        Ok(Listening { endpoint, address, small_buffers, ticket: identity.ticket().clone() })
    }

    /// Leaves it behind. Its connections must have been closed.
    pub(crate) fn keep(self) {
        let alive = Arc::new(());
        let kept = Kept { listening: self, alive: Arc::downgrade(&alive) };
        all().push(kept);
        tokio::spawn(async move {
            tokio::time::sleep(KEEP).await;
            // Unless it was taken over, and perhaps left behind again.
            if let Some(kept) = take(|kept| kept.alive.as_ptr() == Arc::as_ptr(&alive)) {
                kept.endpoint.close(DONE, b"the boss left the run");
            }
        });
    }
}

fn all() -> std::sync::MutexGuard<'static, Vec<Kept>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first that is this one, where its runtime is there.
fn take(is_it: impl Fn(&Kept) -> bool) -> Option<Listening> {
    let mut kept = all();
    kept.retain(|kept| kept.alive.strong_count() > 0);
    let place = kept.iter().position(is_it)?;
    Some(kept.swap_remove(place).listening)
}
