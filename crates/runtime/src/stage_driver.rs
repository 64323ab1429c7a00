//! Drives a worker's session: reports events to it, and executes its effects.

use crate::clock::Clock;
use crate::compute::ComputeThread;
use crate::compute_event::ComputeEvent;
use crate::downloads::{Downloads, HostFrame};
use crate::leave_signal::LeaveSignal;
use crate::log_fields::{command_span, log_message, log_received};
use crate::peer_connections::{DialledWorker, PeerConnections, PeerEvent, PeerEvents};
use crate::reader_thread::{ReaderThread, SampleReader};
use crate::reduction::thread::ReductionThread;
use crate::snapshot_store::SnapshotStore;
use crate::task_tensor::TaskTensor;
use link::admission::acceptor::Accept;
use link::admission::join::JoinedRun;
use link::connection::ConnectionEvent;
use link::quic::close_codes::{DONE, PROTOCOL_VIOLATION};
use link::{Carrier, LinkError, PathReport, Payload, Slots, Ticket};
use pipeline::effect::{Destination, Frame, Micros, Peer, StageEffect};
use pipeline::frame::TensorEnvelope;
use pipeline::ids::Slot;
use pipeline::message::{FailureKind, LinkReport, Progress, TensorHead, ToWorker};
use pipeline::replicas::Node;
use pipeline::stage::StageSession;
use pipeline::task::{Task, TaskError};
use quinn::Endpoint;
use std::future::Future;
use std::io::Write;
use std::ops::ControlFlow;
use std::pin::Pin;
use tracing::{debug, info, Instrument, Span};

/// How the work of a worker for a boss ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The boss ended the run.
    RunOver,
    /// The worker was asked to leave.
    Left {
        /// The last step that it completed in the run.
        after: Option<u64>,
    },
}

/// Works for a boss until the boss ends the run, or `leave` asks this worker to leave it.
///
/// Other workers connect as the boss's assignment says. Without `reader`, a boss that asks for
/// samples breaks the protocol. `snapshots` outlives this run: if the boss is lost, the next boss
/// may ask for them.
///
/// # Errors
/// The connection to the boss is lost, a party broke the protocol, a task hangs, or the device is
/// broken.
pub async fn serve(
    joined: JoinedRun,
    endpoint: &Endpoint,
    ticket: &Ticket,
    compute: ComputeThread,
    reader: Option<Box<dyn SampleReader>>,
    snapshots: SnapshotStore,
    leave: &LeaveSignal,
) -> Result<End, LinkError> {
    let span = joined.span.clone();
    let (connections, events) =
        span.in_scope(|| PeerConnections::start(joined, endpoint, ticket))?;
    let driver = Driver {
        session: StageSession::with_snapshots(snapshots.list()),
        connections,
        slots: Slots::default(),
        clock: Clock::start(),
        compute,
        downloads: Downloads::default(),
        reduction: ReductionThread::default(),
        reader: ReaderThread::new(reader),
        snapshots,
        command: Span::none(),
    };
    driver.serve(events, leave).instrument(span).await
}

struct Driver {
    session: StageSession,
    connections: PeerConnections,
    slots: Slots<TaskTensor>,
    clock: Clock,
    compute: ComputeThread,
    downloads: Downloads,
    reduction: ReductionThread,
    reader: ReaderThread,
    snapshots: SnapshotStore,
    /// The span of the latest command.
    command: Span,
}

impl Driver {
    async fn serve(mut self, events: PeerEvents, leave: &LeaveSignal) -> Result<End, LinkError> {
        let watchdog = self.compute.watchdog();
        tokio::pin!(watchdog);
        let result = self.run(events, leave, watchdog.as_mut()).await;
        let (code, reason) = match &result {
            Ok(End::RunOver) => (DONE, "the run is over".to_string()),
            Ok(End::Left { .. }) => (DONE, "the worker was told to leave".to_string()),
            Err(e) => (PROTOCOL_VIOLATION, e.to_string()),
        };
        info!(reason, "run ends");
        self.connections.close(code, &reason);
        let left = self.left();
        end_compute(&mut self.compute, watchdog, leave, result, left).await
    }

    async fn run(
        &mut self,
        mut events: PeerEvents,
        leave: &LeaveSignal,
        mut watchdog: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<End, LinkError> {
        self.session.on_measuring(Peer::Boss);
        let reader_watchdog = self.reader.watchdog(self.compute.limit());
        tokio::pin!(reader_watchdog);
        let mut is_leaving = false;
        loop {
            if let ControlFlow::Break(end) = self.execute_effects()? {
                return Ok(end);
            }
            let deadline = self.session.poll_timeout();
            tokio::select! {
                event = events.next() => match self.on_peer_event(event) {
                    // The boss lets this worker go.
                    Err(LinkError::Lost { .. }) if is_leaving => return Ok(self.left()),
                    result => result?,
                },
                Some(event) = self.compute.next() => self.on_compute_event(event)?,
                Some(frame) = self.downloads.next() => self.on_downloaded(frame)?,
                Some((ticket, sums)) = self.reduction.next() => {
                    let sums = unless_broken(sums)?;
                    let slots = sums.map(|sums| self.store(sums));
                    self.session.on_summed(self.clock.now(), ticket, slots);
                }
                Some((ticket, tensors)) = self.reader.next() => {
                    let slots = tensors.map(|tensors| self.store(tensors));
                    self.session.on_data(self.clock.now(), ticket, slots);
                }
                () = self.clock.at(deadline) => self.session.on_timeout(self.clock.now()),
                () = leave.wait(), if !is_leaving => {
                    is_leaving = true;
                    self.session.on_leave();
                }
                () = &mut watchdog => {
                    self.compute.abandon();
                    return Err(hung(&self.compute));
                }
                () = &mut reader_watchdog => {
                    return Err(LinkError::ReadingHung { seconds: self.compute.limit().as_secs() });
                }
            }
        }
    }

    fn left(&self) -> End {
        End::Left { after: self.session.last_step() }
    }

    fn store(&self, tensors: impl IntoIterator<Item = impl Into<TaskTensor>>) -> Vec<Slot> {
        tensors.into_iter().map(|tensor| self.slots.insert(tensor.into())).collect()
    }

    /// Takes tensors of a snapshot for peers, which is handed out in host memory.
    fn take_from_host(&self, slots: &[Slot]) -> Result<Vec<Payload>, String> {
        let tensors = self.slots.take(slots)?;
        tensors.iter().map(TaskTensor::to_host).collect::<Result<_, _>>().map_err(|e| e.to_string())
    }

    /// Executes all effects. Breaks if one of them ends the work.
    fn execute_effects(&mut self) -> Result<ControlFlow<End>, LinkError> {
        let _in_command = self.command.clone().entered();
        while let Some(effect) = self.session.poll_effect() {
            if let ControlFlow::Break(end) = self.execute(effect)? {
                return Ok(ControlFlow::Break(end));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn execute(&mut self, effect: StageEffect) -> Result<ControlFlow<End>, LinkError> {
        match effect {
            StageEffect::Tell(message) => self.connections.tell(message).map_err(defect)?,
            StageEffect::Send { to, slots } => {
                let tensors = self.slots.take(&slots).map_err(defect)?;
                self.send(to, tensors).map_err(defect)?;
            }
            StageEffect::Compute { ticket, task } => {
                let task = self.fill_in(task).map_err(defect)?;
                self.compute.submit(ticket, task);
            }
            StageEffect::Interrupt => {
                debug!("waiting tasks are interrupted");
                self.compute.interrupt();
            }
            StageEffect::Sum { ticket, summing, sums } => {
                let take = |(node, slots): (Node, Vec<Slot>)| {
                    Ok::<_, String>((node, self.slots.take(&slots)?))
                };
                let sums = sums.into_iter().map(take).collect::<Result<_, _>>().map_err(defect)?;
                self.reduction.submit(ticket, summing, sums).map_err(defect)?;
            }
            StageEffect::Data { ticket, task } => {
                self.reader.submit(ticket, task).map_err(defect)?
            }
            StageEffect::ReadAhead(readings) => self.reader.read_ahead(readings).map_err(defect)?,
            StageEffect::StoreSnapshot { snapshot, note, part, tensors } => {
                let (names, slots): (Vec<String>, Vec<Slot>) = tensors.into_iter().unzip();
                let tensors = self.take_from_host(&slots).map_err(defect)?;
                let tensors = names.into_iter().zip(tensors).collect();
                self.snapshots.insert(snapshot, part, note, tensors);
            }
            StageEffect::SendSnapshot { to, snapshot, part, name } => {
                let tensor = self.snapshots.get(snapshot, part, &name);
                let tensor = tensor.ok_or_else(|| defect(format!("`{name}` is not stored")))?;
                self.send(to, vec![tensor.into()]).map_err(defect)?;
            }
            StageEffect::RetainSnapshots(wanted) => self.snapshots.retain(&wanted),
            StageEffect::Residuals(residuals) => self.reduction.settle(residuals),
            StageEffect::Dial { peer, address } => self.connections.dial(peer, address),
            StageEffect::PunchHole { address } => self.connections.punch_hole(address),
            StageEffect::Drop(slots) => {
                slots.into_iter().for_each(|slot| drop(self.slots.remove(slot)))
            }
            StageEffect::Hangup { peer: Peer::Boss, reason } => {
                return Err(broken("the boss", reason))
            }
            StageEffect::Hangup { peer: Peer::Worker(peer), reason } => {
                self.connections.hang_up(peer, &reason)
            }
            StageEffect::Progress(progress) => print_progress(&progress),
            // A worker may leave once the boss has all state that it waits for. At the end of a run
            // nobody waits for state that is still copied.
            StageEffect::Finish => return Ok(ControlFlow::Break(End::RunOver)),
            StageEffect::Leave => return Ok(ControlFlow::Break(self.left())),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Replaces a task's slots by tensors.
    fn fill_in(&self, task: Task<Slot>) -> Result<Task<TaskTensor>, String> {
        task.try_map(|slot| self.slots.remove(slot).ok_or(slot))
            .map_err(|slot| format!("{slot} holds no tensor; please report it"))
    }

    fn send(&mut self, to: Vec<Destination>, tensors: Vec<TaskTensor>) -> Result<(), String> {
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            to.into_iter().partition(|to| self.connections.is_self(to.peer));
        for Destination { peer, head, .. } in here {
            let frame = Frame { route: None, head, slots: self.store(tensors.clone()) };
            self.session.on_frame(self.clock.now(), peer, frame);
        }
        if elsewhere.is_empty() {
            return Ok(());
        }
        let payloads: Option<Vec<Payload>> =
            tensors.iter().map(|tensor| tensor.in_host_memory().cloned()).collect();
        match payloads {
            Some(payloads) => self.send_payloads(&elsewhere, &payloads),
            None => self.downloads.submit(elsewhere, tensors),
        }
    }

    fn send_payloads(&self, to: &[Destination], payloads: &[Payload]) -> Result<(), String> {
        to.iter().try_for_each(|to| self.connections.send(to, payloads))
    }

    fn on_downloaded(&mut self, frame: HostFrame) -> Result<(), LinkError> {
        match unless_broken(frame.tensors)? {
            Ok(tensors) => self.send_payloads(&frame.to, &tensors).map_err(defect)?,
            Err(failure) => match frame.to.first().map(|to| &to.head) {
                Some(TensorHead::State { id, .. }) => {
                    self.session.on_state_unreadable(*id, failure);
                }
                _ => return Err(defect(failure.to_string())),
            },
        }
        Ok(())
    }

    fn on_compute_event(&mut self, event: ComputeEvent) -> Result<(), LinkError> {
        let now = self.clock.now();
        match event {
            ComputeEvent::EarlyOutput(output) => {
                let output = output.map(|payload| self.slots.insert(payload));
                self.session.on_early_output(now, output);
            }
            ComputeEvent::Done(done) => {
                let result = unless_broken(done.result)?
                    .map(|outcome| outcome.map(|payload| self.slots.insert(payload)));
                let span = (self.clock.of(done.start), self.clock.of(done.end));
                self.session.on_done(now, done.ticket, result, span);
            }
        }
        Ok(())
    }

    fn on_peer_event(&mut self, event: PeerEvent) -> Result<(), LinkError> {
        let now = self.clock.now();
        match event {
            PeerEvent::Connection(event) => return self.on_connection_event(event),
            PeerEvent::Dialled(DialledWorker { worker, result: Ok(established) }) => {
                self.connections.on_dialled(worker, established);
                self.session.on_measuring(Peer::Worker(worker));
                self.session.on_link_up(now, worker);
            }
            PeerEvent::Dialled(DialledWorker { worker, result: Err(e) }) => {
                info!(peer = %worker, error = e.to_string(), "cannot connect");
                self.session.on_link_down(now, worker, &e.to_string());
            }
            PeerEvent::Accept(Accept::Authenticated(caller)) => {
                if let Some(worker) = self.connections.on_caller(*caller) {
                    self.session.on_link_up(now, worker);
                }
            }
            PeerEvent::Accept(Accept::Rejected { .. }) => {}
        }
        Ok(())
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<ToWorker>) -> Result<(), LinkError> {
        match event {
            // Only the boss's connection brings messages.
            ConnectionEvent::Message { message, .. } => self.on_message(message),
            // They would close the next connection to this worker.
            ConnectionEvent::Frame { from, connection, .. }
                if self.connections.is_hung_up(from, connection) => {}
            ConnectionEvent::Frame { from, envelope, payloads, .. } => {
                self.on_frame(from, envelope, payloads)
            }
            ConnectionEvent::Measured { from, report } => {
                self.session.on_link_report(from, report.map(link_report))
            }
            ConnectionEvent::Closed { from: Peer::Boss, reason, permanent, .. } => {
                return Err(match permanent {
                    true => LinkError::Evicted { reason },
                    false => LinkError::Lost { peer: "the boss".into(), reason },
                });
            }
            ConnectionEvent::Closed { from: Peer::Worker(worker), connection, reason, .. } => {
                if self.connections.remove(worker, connection) {
                    self.session.on_link_down(self.clock.now(), worker, &reason);
                }
            }
        }
        Ok(())
    }

    fn on_message(&mut self, message: ToWorker) {
        if let ToWorker::Command { id, body } = &message {
            self.command = command_span(*id, body);
        }
        self.command.in_scope(|| log_message("received", Peer::Boss, &message));
        self.session.on_message(self.clock.now(), message);
    }

    fn on_frame(&mut self, from: Peer, envelope: TensorEnvelope, payloads: Vec<Payload>) {
        let TensorEnvelope { route, head, .. } = envelope;
        self.command.in_scope(|| log_received(from, &head, &payloads));
        let slots = self.store(payloads);
        self.session.on_frame(self.clock.now(), from, Frame { route, head, slots });
    }
}

/// Waits for the end of the compute thread, and returns the result of the work. `left` is the
/// result if the worker is asked to leave.
///
/// The next membership needs the memory. Meanwhile signals and time limits must work, so this does
/// not block: a pass may be long, and a device that hangs never ends it.
async fn end_compute(
    compute: &mut ComputeThread,
    watchdog: Pin<&mut impl Future<Output = ()>>,
    leave: &LeaveSignal,
    result: Result<End, LinkError>,
    left: End,
) -> Result<End, LinkError> {
    let hung = hung(compute);
    let instead = tokio::select! {
        biased;
        () = compute.end() => return result,
        () = watchdog => Err(hung),
        // The memory is not needed again.
        () = leave.wait() => Ok(left),
    };
    match (result, instead) {
        // It ends this worker, too, and tells the first cause.
        (Err(e), _) if !matches!(e, LinkError::Lost { .. }) => Err(e),
        // A worker that is told to leave a run that is over has not left it.
        (Ok(End::RunOver), Ok(_)) => Ok(End::RunOver),
        (_, instead) => instead,
    }
}

fn hung(compute: &ComputeThread) -> LinkError {
    LinkError::Hung { seconds: compute.limit().as_secs() }
}

/// Translates the measured figures of a path for the boss, which predicts schedules with them.
fn link_report(report: PathReport) -> LinkReport {
    LinkReport {
        rtt: Micros(report.rtt),
        bytes_per_second: report.bytes_per_second,
        packet_bytes: report.packet_bytes.into(),
        shared_memory: report.carrier == Carrier::SharedMemory,
        same_machine: report.same_machine,
    }
}

/// Prints one line for the user of a worker in a pool.
fn print_progress(progress: &Progress) {
    let Progress { step, loss, steps, samples, share, bytes_per_second } = progress;
    let link = bytes_per_second
        .map_or(String::new(), |rate| format!(", link {:.1} MB/s", rate as f64 / 1e6));
    let share = share * 100.0;
    let line = format!(
        "step {step}, loss {loss:.4}; here {steps} steps, {samples} samples, share {share:.0} \
         %{link}"
    );
    drop(writeln!(std::io::stdout(), "{line}"));
}

/// The result, unless the device fails every later task, too: then the run is over for this worker.
fn unless_broken<T, E>(result: Result<T, E>) -> Result<Result<T, E>, LinkError>
where
    E: Clone + Into<TaskError>,
{
    match result.as_ref().map_err(|error| error.clone().into()) {
        Err(TaskError { failure, .. }) if failure.kind == FailureKind::DeviceBroken => {
            Err(LinkError::DeviceBroken { failure: failure.to_string() })
        }
        _ => Ok(result),
    }
}

/// This worker cannot do what its session wants.
fn defect(reason: String) -> LinkError {
    broken("this worker", reason)
}

fn broken(peer: &str, reason: String) -> LinkError {
    LinkError::Protocol { peer: peer.into(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Compute;
    use pipeline::ids::Ticket as TaskTicket;
    use pipeline::task::{EarlyOutput, Outcome};
    use std::sync::{mpsc, Arc};
    use std::time::Duration;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const LEFT: End = End::Left { after: Some(7) };

    /// Each of its tasks lasts until the gate opens: its sender is dropped.
    struct Gated {
        gate: mpsc::Receiver<()>,
        /// Stands for its tensors.
        _memory: Arc<()>,
    }

    impl Compute for Gated {
        fn run(
            &mut self,
            _: Task<TaskTensor>,
            _: &mut dyn FnMut(EarlyOutput<TaskTensor>),
        ) -> Result<Outcome<TaskTensor>, TaskError> {
            self.gate.recv().unwrap_err();
            Ok(Outcome::Done)
        }

        fn prepare(&mut self, _: &Task<TaskTensor>) {}
    }

    /// A compute thread in a task, its gate and its memory.
    fn busy(limit: Duration) -> (ComputeThread, mpsc::Sender<()>, Arc<()>) {
        let (open, gate) = mpsc::channel();
        let memory = Arc::new(());
        let compute = Gated { gate, _memory: memory.clone() };
        let compute = ComputeThread::start(move || compute).unwrap().task_limit(limit);
        compute.submit(TaskTicket(1), Task::Digest);
        (compute, open, memory)
    }

    fn lost() -> Result<End, LinkError> {
        Err(LinkError::Lost { peer: "the boss".into(), reason: "silent".into() })
    }

    /// This runtime has one thread: if anything blocked it, no timer would fire.
    #[tokio::test]
    async fn a_task_that_lasts_after_the_boss_is_lost_blocks_nobody() {
        let (mut compute, open, memory) = busy(TIMEOUT);
        let watchdog = compute.watchdog();
        tokio::pin!(watchdog);
        let leave = LeaveSignal::default();
        {
            let end = end_compute(&mut compute, watchdog.as_mut(), &leave, lost(), LEFT);
            tokio::pin!(end);
            assert!(tokio::time::timeout(Duration::from_millis(1), &mut end).await.is_err());
            assert_eq!(Arc::strong_count(&memory), 2);
            drop(open);
            let result = tokio::time::timeout(TIMEOUT, end).await.unwrap();
            assert!(matches!(result, Err(LinkError::Lost { .. })), "{result:?}");
        }
        assert_eq!(Arc::strong_count(&memory), 1, "the next membership needs the memory");
    }

    #[tokio::test]
    async fn a_worker_that_is_asked_to_leave_waits_for_no_task() {
        let (mut compute, _open, _memory) = busy(TIMEOUT);
        let watchdog = compute.watchdog();
        tokio::pin!(watchdog);
        let leave = LeaveSignal::default();
        leave.leave();
        for (result, expected) in [(lost(), LEFT), (Ok(End::RunOver), End::RunOver)] {
            let end = end_compute(&mut compute, watchdog.as_mut(), &leave, result, LEFT).await;
            assert_eq!(end.unwrap(), expected);
        }
        // It would block here if it waited for the thread.
        drop(compute);
    }

    #[tokio::test]
    async fn a_task_that_never_ends_ends_the_worker_also_after_its_boss_is_lost() {
        let broken = || Err(LinkError::DeviceBroken { failure: "illegal address".into() });
        for (result, expected) in [
            (lost(), "one task has taken 0 s and is not done"),
            (Ok(End::RunOver), "one task has taken 0 s and is not done"),
            (broken(), "its device is broken for this process"),
        ] {
            let (mut compute, _open, _memory) = busy(Duration::from_millis(50));
            let watchdog = compute.watchdog();
            tokio::pin!(watchdog);
            let leave = LeaveSignal::default();
            let end = end_compute(&mut compute, watchdog, &leave, result, LEFT);
            let error = tokio::time::timeout(TIMEOUT, end).await.unwrap().unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
}
