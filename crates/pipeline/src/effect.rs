//! What sessions are told and what they want done. A session does no I/O: the driver does, and
//! tells it what happened.

use crate::frame::Route;
use crate::ids::{Slot, StageId, Ticket, WorkerId};
use crate::kept::{PeerSnapshot, SnapshotId, SnapshotNote};
use crate::message::{Failure, Head, LinkReport, Progress};
use crate::replicas::{Compress, Node, UniqueId};
use crate::samples::{DataTask, Reading};
use crate::schedule::Action;
use crate::task::{LayerTimes, Task};
use crate::watch::LayerHealth;
use std::fmt;
use std::net::SocketAddr;

pub use crate::micros::Micros;

/// The other end of a connection.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// The boss.
    Boss,
    /// A worker; a session's own number leads back to itself.
    Worker(WorkerId),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Boss => f.write_str("the boss"),
            Peer::Worker(worker) => worker.fmt(f),
        }
    }
}

/// A frame whose tensors the driver holds in slots.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame {
    /// Set on frames that go by way of the boss.
    pub route: Option<Route>,
    /// What is said.
    pub head: Head,
    /// The tensors that came with it.
    pub slots: Vec<Slot>,
}

/// One receiver of a frame.
#[derive(Clone, PartialEq, Debug)]
pub struct Destination {
    /// The connection to use.
    pub peer: Peer,
    /// Set where the boss is to pass it on.
    pub route: Option<Route>,
    /// What is said to this receiver.
    pub head: Head,
}

/// What the boss's session wants done. Every slot is given back in exactly one effect.
#[allow(clippy::large_enum_variant, reason = "an effect is moved once, and few wait at a time")]
#[derive(Clone, PartialEq, Debug)]
pub enum BossEffect {
    /// Send the same tensors to each receiver.
    Send {
        /// The receivers.
        to: Vec<Destination>,
        /// The tensors.
        slots: Vec<Slot>,
    },
    /// Free these tensors.
    Drop(Vec<Slot>),
    /// Close the connection to a worker that violated the protocol.
    Hangup {
        /// Which worker.
        worker: WorkerId,
        /// What it did.
        reason: String,
    },
    /// Close the connection to a worker that is not at fault and may join again.
    Dismiss {
        /// Which worker.
        worker: WorkerId,
        /// Why, as it is told.
        reason: String,
    },
    /// Show this text to the user.
    Notice(String),
    /// Answer a request.
    Reply {
        /// Which request.
        request: u64,
        /// The result.
        result: Result<Answer, Failure>,
    },
}

/// What a worker's session wants done. Every slot is given back in exactly one effect.
#[derive(Clone, PartialEq, Debug)]
pub enum StageEffect {
    /// Send the same tensors to each receiver.
    Send {
        /// The receivers.
        to: Vec<Destination>,
        /// The tensors.
        slots: Vec<Slot>,
    },
    /// Free these tensors.
    Drop(Vec<Slot>),
    /// Give a task to the compute thread. Its result goes to `on_done`, with the times at which the
    /// work began and ended.
    Compute {
        /// Names the result.
        ticket: Ticket,
        /// The work.
        task: Task<Slot>,
    },
    /// Let no task wait for other workers any more, up to the next [`Task::Discard`].
    Interrupt,
    /// Sum gradients beside the compute thread. The sum of each slice goes to `on_summed`.
    Sum {
        /// Names the result.
        ticket: Ticket,
        /// How to sum.
        summing: Summing,
        /// The slices of each node. Every node has the same number of slices. A slice of shape `[0]`
        /// adds nothing.
        sums: Vec<(Node, Vec<Slot>)>,
    },
    /// Work on the worker's own files beside the compute thread. The result goes to `on_data`.
    Data {
        /// Names the result.
        ticket: Ticket,
        /// The work.
        task: DataTask,
    },
    /// Read these after everything that was asked for so far, and keep the result: the next round
    /// probably asks for it. Drop what was read ahead before.
    ReadAhead(Vec<Reading>),
    /// Settle the residuals of compression, once everything asked for before is summed.
    Residuals(Residuals),
    /// Store part of a snapshot beyond the run.
    StoreSnapshot {
        /// Which snapshot.
        copy: SnapshotId,
        /// What is stored with the snapshot.
        note: SnapshotNote,
        /// The number of the part.
        part: u32,
        /// The tensors by name.
        tensors: Vec<(String, Slot)>,
    },
    /// Send one tensor of a stored snapshot.
    SendSnapshot {
        /// The receivers.
        to: Vec<Destination>,
        /// Which snapshot.
        copy: SnapshotId,
        /// The number of the part.
        part: u32,
        /// The name of the tensor.
        name: String,
    },
    /// Drop all stored snapshots but these.
    RetainSnapshots(Vec<SnapshotId>),
    /// Connect to a worker. The result goes to `on_link_up` or `on_link_down`.
    Dial {
        /// Which worker.
        peer: WorkerId,
        /// Where it listens.
        address: SocketAddr,
    },
    /// Close the connection to a peer that violated the protocol.
    Hangup {
        /// Which connection.
        peer: Peer,
        /// What it did.
        reason: String,
    },
    /// Show how the run stands to the worker's user.
    Progress(Progress),
    /// End: the boss ended the run.
    Finish,
}

/// How gradients are summed beside the compute thread.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Summing {
    /// Along the tree over so many microbatches, of which the nodes are all.
    Tree(u32),
    /// One node after the other, each in whatever form it came, and then what was lost the last time; the sum in this
    /// form. What that loses is kept for the next time.
    Compressed(Compress, Part),
    /// One node after the other, each in whatever form it came; the sum in float32.
    InTurn,
}

/// What a replica compresses: what it lost of one of these has nothing to do with any other.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Part {
    /// Of which stage.
    pub stage: StageId,
    /// Which bucket.
    pub bucket: u32,
    /// Whose shard of it: another replica's, which is sent this one's share, or its own, which is sent to all.
    pub replica: u16,
}

/// What becomes of what was lost when sums were compressed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Residuals {
    /// Parameters have changed by what was sent: it stays as it is.
    Keep,
    /// What was sent since parameters last changed is void: it becomes again what it was then.
    Restore,
    /// There are other parameters, other replicas or a fresh optimizer: there is none any more.
    Forget,
}

/// What a request to the boss session brings.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Answer {
    /// The weighted loss of each microbatch, ascending.
    pub losses: Vec<(u32, f32)>,
    /// The model's outputs, by microbatch and variable.
    pub outputs: Vec<(u32, layerspec::ValueId, Slot)>,
    /// Parameters and buffers by name.
    pub state: Vec<(String, Slot)>,
    /// The norm of all gradients before they were shortened, where a limit was set.
    pub grad_norm: Option<f64>,
    /// How layers fared in the update, where that was asked for, ascending.
    pub health: Vec<LayerHealth>,
    /// When each action ran, in the order in which workers answered.
    pub spans: Vec<WorkerSpan>,
    /// After a measurement: for each worker, ascending, what each layer takes there.
    pub measured: Vec<(WorkerId, Vec<LayerTimes>)>,
    /// A SHA-256 of each trained parameter of each stage of each worker, by its name; ascending.
    pub digests: Vec<(WorkerId, StageId, String, [u8; 32])>,
    /// What each worker keeps of the run's copies.
    pub copies: Vec<(WorkerId, PeerSnapshot)>,
    /// An id for a communicator of each stage whose replicas sum gradients, ascending.
    pub unique_ids: Vec<(StageId, UniqueId)>,
    /// What each worker said last of its links: to another worker, or to the boss.
    pub links: Vec<(WorkerId, Option<WorkerId>, LinkReport)>,
    /// For each follower how many commands it has still to carry out.
    pub behind: Vec<(WorkerId, usize)>,
}

/// When an action ran, on the boss's clock as well as that can be told: half a round trip more or less.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct WorkerSpan {
    /// Where.
    pub worker: WorkerId,
    /// What.
    pub action: Action,
    /// From when.
    pub start: Micros,
    /// Until when.
    pub end: Micros,
}
