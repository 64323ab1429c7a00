//! The user's end of a running boss.

use crate::handle_input::Input;
use crate::membership_event::MembershipEvent;
use crate::state_event::FetchId;
use crate::state_stream::StateStream;
use crate::waiting_workers::WaitingWorkers;
use link::quic::close_codes::{EVICTED, PROTOCOL_VIOLATION};
use link::{Slots, WorkerInfo};
use pipeline::boss::{IntoRequest, SendState};
use pipeline::ids::WorkerId;
use pipeline::message::{Failure, Progress};
use quinn::VarInt;
use std::future::Future;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// The user's end of a running boss. Dropping the last clone closes all connections.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inputs: mpsc::UnboundedSender<Input>,
    /// The tensors of requests and answers.
    pub slots: Slots,
    pub(crate) workers: Vec<WorkerInfo>,
    pub(crate) waiting: WaitingWorkers,
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

    /// Leaves the run for this reason, which workers print while they wait for the next boss.
    /// Returns when every worker has closed its connection, or after two seconds.
    pub async fn leave(&self, reason: &str) {
        let (done, left) = oneshot::channel();
        let reason = reason.to_string();
        if self.inputs.send(Input::Leave { reason, done }).is_ok() {
            left.await.ok();
        }
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

    /// The descriptions of the workers that ask for a place now and get none, because the workers
    /// of the run are fixed.
    pub fn waiting(&self) -> Vec<WorkerInfo> {
        self.waiting.here(Instant::now())
    }

    /// Sets the number of places that a later session of the run can fill. Workers that ask are
    /// then told that they are taken in later.
    pub fn offer_places(&self, free: usize) {
        self.waiting.offer(free);
    }
}
