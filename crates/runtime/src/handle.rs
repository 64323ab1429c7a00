//! The user's end of a running boss.

use crate::state_stream::{FetchId, StateEvent, StateStream};
use link::quic::close_codes::{EVICTED, PROTOCOL_VIOLATION};
use link::{Slots, WorkerInfo};
use parking_lot::Mutex;
use pipeline::boss::{Answer, IntoRequest, Request, SendState};
use pipeline::ids::WorkerId;
use pipeline::message::{Failure, Progress};
use quinn::VarInt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
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
    /// End the run, and report when all workers know.
    Stop(oneshot::Sender<()>),
}

/// A worker joined or left an open run.
#[derive(Debug)]
pub enum MembershipEvent {
    /// A worker joined. It has no stages yet.
    Joined {
        /// Its number.
        worker: WorkerId,
        /// The description that it sent.
        info: WorkerInfo,
        /// Its address.
        address: SocketAddr,
    },
    /// A worker left.
    Left {
        /// Its number.
        worker: WorkerId,
        /// Why, as far as known.
        reason: String,
    },
}

/// The user's end of a running boss. Dropping the last clone closes all connections.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inputs: mpsc::UnboundedSender<Input>,
    /// The tensors of requests and answers.
    pub slots: Slots,
    pub(crate) workers: Vec<WorkerInfo>,
    pub(crate) status: Arc<Mutex<String>>,
}

impl Handle {
    /// Carries out a request. Its tensors, and those of the answer, are in [`Handle::slots`]. The
    /// request is queued when this function returns, before anything awaits the answer.
    ///
    /// # Errors
    /// The request failed, or the run has ended.
    pub fn call<R: IntoRequest>(
        &self,
        request: R,
    ) -> impl Future<Output = Result<R::Answer, Failure>> + Send + 'static + use<R> {
        let (reply, answer) = oneshot::channel();
        let sent = self.inputs.send(Input::Request(request.into_request(), reply)).is_ok();
        async move {
            let ended = || Failure::new("the run has ended");
            let answer = match sent {
                true => answer.await.unwrap_or_else(|_| Err(ended()))?,
                false => return Err(ended()),
            };
            R::read(answer).ok_or_else(|| Failure::new("the boss answered another request"))
        }
    }

    /// Fetches state part by part, while later requests run. The request is queued when this
    /// function returns.
    pub fn fetch(&self, request: SendState) -> StateStream {
        let (sender, events) = mpsc::unbounded_channel();
        // If the driver is gone, so is the sender, and the stream says that the run has ended.
        let id = FetchId::next();
        self.inputs.send(Input::Fetch(request, id, sender)).ok();
        StateStream::new(id, events, self.inputs.downgrade())
    }

    /// Reports that a worker is lost, before its connection shows it.
    pub fn report_lost(&self, worker: WorkerId, reason: &str) {
        self.inputs.send(Input::Lost(worker, reason.to_string())).ok();
    }

    /// Opens the run to workers that join and leave. Returns their events.
    pub fn admit_workers(&self) -> mpsc::UnboundedReceiver<MembershipEvent> {
        let (sender, events) = mpsc::unbounded_channel();
        self.inputs.send(Input::AdmitWorkers(sender)).ok();
        events
    }

    /// Reports the progress of the run to a worker, which prints it.
    pub fn send_progress(&self, worker: WorkerId, progress: Progress) {
        self.inputs.send(Input::Progress(worker, progress)).ok();
    }

    /// Closes the connection to a worker, which is told the reason and may join again.
    pub fn disconnect(&self, worker: WorkerId, reason: &str) {
        self.close(worker, reason, PROTOCOL_VIOLATION);
    }

    /// Closes the connection to a worker, which is told the reason and must not join again.
    pub fn evict(&self, worker: WorkerId, reason: &str) {
        self.close(worker, reason, EVICTED);
    }

    fn close(&self, worker: WorkerId, reason: &str, code: VarInt) {
        let reason = reason.to_string();
        self.inputs.send(Input::Disconnect { worker, reason, code }).ok();
    }

    /// Closes all connections, as dropping the last clone of the handle does.
    pub fn disconnect_all(&self) {
        self.inputs.send(Input::DisconnectAll).ok();
    }

    /// Sets the JSON status shown to ticket holders.
    pub fn set_status(&self, status: String) {
        *self.status.lock() = status;
    }

    /// Ends the run. Returns when every worker has closed its connection, or after two seconds.
    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        if self.inputs.send(Input::Stop(done)).is_ok() {
            stopped.await.ok();
        }
    }

    /// The workers' descriptions of themselves, by number.
    pub fn workers(&self) -> &[WorkerInfo] {
        &self.workers
    }
}
