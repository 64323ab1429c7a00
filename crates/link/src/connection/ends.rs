//! What the tasks of a connection share, and how they tell the other end something about it.

use crate::connection::lane::Lane;
use crate::connection::link_message::LinkMessage;
use crate::connection::taking::Taking;
use crate::memory::pool::Pool;
use crate::memory::shared::{Memory, Transport};
use crate::quic::path::Path;
use crate::quic::report::PathReport;
use pipeline::effect::Peer;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::mpsc;

/// What the tasks of a connection share.
pub(crate) struct Ends {
    pub(crate) peer: Peer,
    pub(crate) quic: quinn::Connection,
    pub(crate) path: Path,
    pub(crate) memory: Memory,
    /// Whether shared memory may be agreed upon when the other end asks.
    pub(crate) transport: Transport,
    pub(crate) lane: Lane,
    pub(crate) pool: Pool,
    /// Set at the end that dialled, which asks: where answers to its words go.
    pub(crate) answers: Mutex<Option<mpsc::Sender<LinkMessage>>>,
    pub(crate) report: Mutex<Option<PathReport>>,
    pub(crate) taking: Arc<Taking>,
    /// Why this end closed it, where nothing came any more or nothing was taken.
    pub(crate) ended: OnceLock<&'static str>,
}

/// Words that wait for whoever asked for them, or for the network; more are dropped.
pub(crate) const ANSWERS: usize = 16;

impl Ends {
    /// Tells the other end something about the connection.
    pub(crate) fn say(&self, message: LinkMessage) {
        self.lane.send(vec![message.encode().into()]);
    }

    /// The same, for what the other end asked: one that asks and does not read what it is told gets nothing.
    pub(crate) fn answer(&self, message: LinkMessage) {
        if self.lane.waiting() < ANSWERS {
            self.say(message);
        }
    }
}
