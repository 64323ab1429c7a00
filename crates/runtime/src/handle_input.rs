//! A call of the handle, as the driver receives it.

use crate::membership_event::MembershipEvent;
use crate::state_event::{FetchId, StateEvent};
use pipeline::boss::{Answer, Request, SendState};
use pipeline::ids::WorkerId;
use pipeline::message::{Failure, Progress};
use quinn::VarInt;
use tokio::sync::{mpsc, oneshot};

/// The sender of a request's answer.
pub(crate) type ReplySender = oneshot::Sender<Result<Answer, Failure>>;

/// A call of the handle, as the driver receives it.
pub(crate) enum Input {
    /// Carry out a request, and answer it.
    Request(Request, ReplySender),
    /// Fetch state, and hand it over in parts.
    Fetch(SendState, FetchId, mpsc::UnboundedSender<StateEvent>),
    /// Nobody receives the state any more.
    FetchDropped(FetchId),
    /// A part of the state of a request was taken.
    StateTaken { request: u64, worker: WorkerId },
    /// A worker is known to be lost, for this reason.
    Lost(WorkerId, String),
    /// Open the run to workers that join and leave, and report them.
    AdmitWorkers(mpsc::UnboundedSender<MembershipEvent>),
    /// Report the progress of the run to a worker.
    Progress(WorkerId, Progress),
    /// Close the connection to a worker.
    Disconnect { worker: WorkerId, reason: String, code: VarInt },
    /// Close all connections. The run ends without its workers.
    DisconnectAll,
    /// Closes all connections with this reason, and the port.
    Leave { reason: String, done: oneshot::Sender<()> },
    /// End the run, and report when all workers know.
    Stop(oneshot::Sender<()>),
}
