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
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;

/// The state that the tasks of a connection share.
pub(crate) struct ConnectionShared {
    pub(crate) peer: Peer,
    pub(crate) quic: quinn::Connection,
    pub(crate) path: NetworkPath,
    pub(crate) memory: SharedMemory,
    /// Whether shared memory may be agreed upon when the other end asks.
    pub(crate) transport: Transport,
    pub(crate) ordered: OrderedStream,
    pub(crate) pool: BufferPool,
    /// Set at the end that dialled, which asks: where answers to its words go.
    pub(crate) answers: Mutex<Option<mpsc::Sender<LinkMessage>>>,
    pub(crate) report: Mutex<Option<PathReport>>,
    pub(crate) progress: Arc<SendProgress>,
    /// Why this end closed it, where nothing came any more or nothing was taken.
    pub(crate) ended: OnceLock<&'static str>,
}

/// Words that wait for whoever asked for them, or for the network; more are dropped.
pub(crate) const MAX_PENDING_ANSWERS: usize = 16;

impl ConnectionShared {
    /// Tells the other end something about the connection.
    pub(crate) fn send_message(&self, message: LinkMessage) {
        self.ordered.send(vec![message.encode().into()]);
    }

    /// The same, for what the other end asked: one that asks and does not read what it is told gets nothing.
    pub(crate) fn send_answer(&self, message: LinkMessage) {
        if self.ordered.waiting() < MAX_PENDING_ANSWERS {
            self.send_message(message);
        }
    }
}
