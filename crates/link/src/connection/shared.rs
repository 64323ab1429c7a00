//! The state that the tasks of a connection share, and their messages to the other end.

use crate::connection::link_message::LinkMessage;
use crate::connection::ordered_stream::OrderedStream;
use crate::connection::progress::SendProgress;
use crate::memory::pool::BufferPool;
use crate::memory::shared::{SharedMemory, Transport};
use crate::quic::network_path::NetworkPath;
use crate::quic::report::PathReport;
use parking_lot::Mutex;
use pipeline::effect::Peer;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;

/// The number of connections that this process has begun.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// A number that no other connection of this process has, also not after this one has ended.
///
/// quinn's `stable_id` is an address, which a later connection may have again.
pub(crate) fn next_id() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed)
}

/// The state that the tasks of a connection share.
pub(crate) struct ConnectionShared {
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) quic: quinn::Connection,
    pub(crate) path: NetworkPath,
    pub(crate) memory: SharedMemory,
    /// Whether this end agrees to shared memory if the other end offers it.
    pub(crate) transport: Transport,
    pub(crate) ordered: OrderedStream,
    pub(crate) pool: BufferPool,
    /// The receiver of answers to link messages. Set at the end that dialled.
    pub(crate) answers: Mutex<Option<mpsc::Sender<LinkMessage>>>,
    pub(crate) report: Mutex<Option<PathReport>>,
    pub(crate) progress: Arc<SendProgress>,
    /// Why this end closed the connection. Set if the other end was silent or took nothing.
    pub(crate) closed_here: OnceLock<&'static str>,
    /// The number of checks since a packet arrived.
    pub(crate) silent_checks: AtomicU32,
}

/// The most answers that wait to be read here, and the most frames that wait for the network when
/// an answer is sent. Further answers are dropped.
pub(crate) const MAX_PENDING_ANSWERS: usize = 16;

impl ConnectionShared {
    /// Sends a message about the connection.
    pub(crate) fn send_message(&self, message: LinkMessage) {
        self.ordered.send(vec![message.encode().into()]);
    }

    /// Sends an answer, unless too much waits already: a peer that asks and does not read must not
    /// fill this end's memory.
    pub(crate) fn send_answer(&self, message: LinkMessage) {
        if self.ordered.waiting() < MAX_PENDING_ANSWERS {
            self.send_message(message);
        }
    }
}
