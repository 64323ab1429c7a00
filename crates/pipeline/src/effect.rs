//! The inputs of sessions and their effects. A session does no I/O: the driver executes its effects
//! and reports what happened.

use crate::boss::answer::Answer;
use crate::frame::Route;
use crate::ids::{Slot, StageId, Ticket, WorkerId};
use crate::message::{Failure, Progress, TensorHead, ToBoss, ToWorker};
use crate::peer_snapshot::{SnapshotId, SnapshotNote};
use crate::replicas::{Compress, Node};
use crate::samples::{DataTask, Reading};
use crate::task::Task;
use crate::tensor_meta::TensorMeta;
use std::fmt;
use std::net::SocketAddr;

pub use crate::micros::Micros;
pub use crate::worker_span::WorkerSpan;

/// A text for the user, and the workers that it is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BossNotice {
    /// The text, which names the workers, too.
    pub text: String,
    /// The workers.
    pub workers: Vec<WorkerId>,
}

impl fmt::Display for BossNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The other end of a connection.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// The boss.
    Boss,
    /// A worker. A session's own number leads back to itself.
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

/// A frame with tensors, which the driver holds in slots.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame {
    /// Set on frames that the boss relays.
    pub route: Option<Route>,
    /// The head.
    pub head: TensorHead,
    /// The tensors that came with it.
    pub slots: Vec<Slot>,
}

/// One receiver of a frame.
#[derive(Clone, PartialEq, Debug)]
pub struct Destination {
    /// The connection to use.
    pub peer: Peer,
    /// Set if the boss must relay the frame.
    pub route: Option<Route>,
    /// The head for this receiver.
    pub head: TensorHead,
}

/// A message of the boss to one worker.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    /// The receiver.
    pub to: WorkerId,
    /// The message.
    pub body: ToWorker,
}

/// An effect of the boss's session. Every slot is given back in exactly one effect.
#[allow(clippy::large_enum_variant, reason = "an effect is moved once, and few wait at a time")]
#[derive(Clone, PartialEq, Debug)]
pub enum BossEffect {
    /// Send a message to each receiver.
    Tell(Vec<Message>),
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
        /// The violation.
        reason: String,
    },
    /// Close the connection to a worker that is not at fault and may join again.
    Dismiss {
        /// Which worker.
        worker: WorkerId,
        /// Why, as it is told.
        reason: String,
    },
    /// A worker of a pool is told to leave. If it is the last that has some stage, it stays until
    /// another one has it.
    Leaving(WorkerId),
    /// Every worker has answered a request for state, whose frames come now.
    StateHeads {
        /// Which request.
        request: u64,
        /// The name, dtype and shape of each whole tensor, shard or hash, in the order of workers.
        heads: Vec<(WorkerId, String, TensorMeta)>,
    },
    /// A frame of state arrived. Once the caller has taken it, `on_state_taken` lets the worker
    /// send another one.
    State {
        /// Which request.
        request: u64,
        /// The worker that sent it.
        worker: WorkerId,
        /// Its [name](crate::StateName): that of one of the heads, or of a slice of it.
        name: String,
        /// The tensor.
        slot: Slot,
    },
    /// Show this to the user.
    Notice(BossNotice),
    /// Answer a request.
    Reply {
        /// Which request.
        request: u64,
        /// The result.
        result: Result<Answer, Failure>,
    },
}

/// An effect of a worker's session. Every slot is given back in exactly one effect.
#[derive(Clone, PartialEq, Debug)]
pub enum StageEffect {
    /// Send a message to the boss.
    Tell(ToBoss),
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
        /// The slices of each node. Every node has the same number of slices. A slice of shape
        /// `[0]` adds nothing.
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
        snapshot: SnapshotId,
        /// The note to store with it.
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
        snapshot: SnapshotId,
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
        /// Its address.
        address: SocketAddr,
    },
    /// Send a packet to a worker that dials this one: firewalls and routers let answers pass
    /// (UDP hole punching, RFC 5128).
    PunchHole {
        /// The address of that worker.
        address: SocketAddr,
    },
    /// Close the connection to a peer that violated the protocol.
    Hangup {
        /// Which connection.
        peer: Peer,
        /// The violation.
        reason: String,
    },
    /// Show how the run stands to the worker's user.
    Progress(Progress),
    /// End: the boss ended the run.
    Finish,
    /// End: the worker was told to leave, and its work has not begun.
    Leave,
}

/// How gradients are summed beside the compute thread.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Summing {
    /// Along the tree over this number of microbatches. The nodes cover all of them.
    Tree(u32),
    /// One node after the other, each decoded from its form, and then the residual of the last
    /// time. The sum is encoded in this form, and its rounding error becomes the next residual.
    Compressed(Compress, Part),
    /// One node after the other, each decoded from its form. The sum is float32.
    InTurn,
}

/// A unit of compression. Each has a residual of its own.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Part {
    /// The stage.
    pub stage: StageId,
    /// The bucket.
    pub bucket: u32,
    /// The replica whose shard it is: another one, which receives this replica's share, or this
    /// one, which sends the sum to all.
    pub replica: u16,
}

/// Settles the residuals of compression.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Residuals {
    /// Keep them: parameters have changed by the sums that were sent.
    Keep,
    /// Restore the residuals of the last change of parameters: all sums sent since are void.
    Restore,
    /// Clear them: there are other parameters, other replicas or a fresh optimizer.
    Forget,
}
