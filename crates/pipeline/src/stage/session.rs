//! The session itself: it routes each event to the machine that it concerns.

use super::active_round::ActiveRound;
use super::command_queue::CommandQueue;
use super::context::{Context, RoundContext};
use super::early_frames::{EarlyFrames, ReplicaFrame};
use super::inbox::{Inbox, Item};
use super::job::{Job, Purpose};
use super::links::Links;
use super::loading::{Loading, Weight};
use super::membership::Membership;
use super::outbox::Outbox;
use super::peer_snapshots::{PartTensor, PeerSnapshots};
use super::reading::{Answer, ReadResult, SampleReader};
use super::state_frames::StateFrames;
use super::state_transfer::{StateTensor, StateTransfer};
use crate::effect::{Frame, Micros, Peer, StageEffect};
use crate::ids::{MicrobatchKey, Slot, Ticket, WorkerId};
use crate::message::{Failure, LinkReport, Span, TensorHead, ToBoss, ToWorker};
use crate::peer_snapshot::PeerSnapshot;
use crate::schedule::Action;
use crate::task::{EarlyOutput, Outcome, Task, TaskError};
use std::collections::BTreeMap;

/// A worker's session.
#[derive(Default)]
pub struct StageSession {
    pub(super) membership: Membership,
    pub(super) links: Links,
    pub(super) commands: CommandQueue,
    /// The current command.
    pub(super) job: Option<Job>,
    /// The tasks at the compute thread.
    pub(super) tasks: BTreeMap<Ticket, Purpose>,
    pub(super) inbox: Inbox,
    pub(super) early_frames: EarlyFrames,
    pub(super) loading: Loading,
    pub(super) transfer: StateTransfer,
    pub(super) state_frames: StateFrames,
    pub(super) snapshots: PeerSnapshots,
    pub(super) reader: SampleReader,
    /// The last step that is complete here.
    pub(super) last_step: Option<u64>,
    /// The time of the last event.
    pub(super) now: Micros,
    /// The time at which the current command began.
    pub(super) received: Micros,
    pub(super) outbox: Outbox,
}

/// The round of the current command, and what it uses.
pub(super) struct RoundAtWork<'a> {
    pub(super) active: &'a mut ActiveRound,
    pub(super) context: RoundContext<'a>,
}

impl StageSession {
    /// A session that waits for its first command.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, for a worker that stores snapshots of earlier runs.
    pub fn with_snapshots(stored: Vec<PeerSnapshot>) -> Self {
        StageSession { snapshots: PeerSnapshots::new(stored), ..Self::default() }
    }

    /// Removes the next effect, if any.
    pub fn poll_effect(&mut self) -> Option<StageEffect> {
        self.outbox.pop()
    }

    /// The latest time for `on_timeout`. It may change with every call.
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.links.deadline()
    }

    /// The time of `poll_timeout` has come.
    pub fn on_timeout(&mut self, now: Micros) {
        for peer in self.links.overdue(now) {
            self.on_link_down(now, peer, "no answer within 3 seconds");
        }
    }

    /// The worker is told to leave the run. The boss lets it go between two commands, so that no
    /// step is half done. Before the first command, nobody counts on it.
    pub fn on_leave(&mut self) {
        match self.commands.have_begun() {
            true => self.outbox.tell_boss(ToBoss::Leaving),
            false => self.outbox.push(StageEffect::Leave),
        }
    }

    /// The last training step of the run that is complete on this worker.
    pub fn last_step(&self) -> Option<u64> {
        self.last_step
    }

    /// State that was to be sent for this command cannot be read. Training goes on without it.
    pub fn on_state_unreadable(&mut self, id: u64, mut failure: Failure) {
        let waiting = self.state_frames.cancel(id);
        self.outbox.drop_slots(waiting);
        failure.worker = self.membership.worker;
        self.outbox.tell_boss(ToBoss::Failed { id, failure });
    }

    /// A direct connection to a worker is up, dialled by either end.
    pub fn on_link_up(&mut self, now: Micros, peer: WorkerId) {
        self.now = now;
        self.links.up(peer);
        self.finish_opening();
    }

    /// A direct connection to a worker could not be made, or broke.
    pub fn on_link_down(&mut self, now: Micros, peer: WorkerId, reason: &str) {
        self.now = now;
        if let Some(was_up) = self.links.down(peer) {
            self.outbox.tell_boss(ToBoss::LinkFailed { peer, reason: reason.to_string(), was_up });
            self.finish_opening();
        }
        self.finish_measuring();
    }

    /// The driver began to measure a connection and will call `on_link_report`. A measurement of
    /// layers is answered only after that, because the choice of a schedule needs both.
    pub fn on_measuring(&mut self, peer: Peer) {
        self.links.measuring(peer);
    }

    /// The driver measured a connection to another worker or to the boss, or could not measure it.
    pub fn on_link_report(&mut self, peer: Peer, report: Option<LinkReport>) {
        self.links.measured(peer, report);
        self.finish_measuring();
    }

    /// A frame with tensors arrived.
    pub fn on_frame(&mut self, now: Micros, from: Peer, frame: Frame) {
        self.now = now;
        let Frame { route, head, slots } = frame;
        self.outbox.take(slots.len());
        // The boss passes frames on for pairs that cannot connect.
        let from = match route {
            Some(route) if from == Peer::Boss => Peer::Worker(route.from),
            _ => from,
        };
        let of_batch = |batch| MicrobatchKey { batch, index: 0 };
        match head {
            TensorHead::Value { key, value, to } => {
                self.arrive(from, key, to, Item::Value(value), slots)
            }
            TensorHead::Target { key, to } => self.arrive(from, key, to, Item::Target, slots),
            TensorHead::Gradient { key, value, from: stage, to } => {
                self.arrive(from, key, to, Item::Gradient { value, from: stage }, slots);
            }
            TensorHead::TiedGrads { batch, from: stage, to } => {
                self.arrive(from, of_batch(batch), to, Item::TiedGrads { from: stage }, slots);
            }
            TensorHead::TiedValues { batch, from: stage, to } => {
                self.arrive(from, of_batch(batch), to, Item::TiedValues { from: stage }, slots);
            }
            TensorHead::Sum { batch, .. }
            | TensorHead::Reduced { batch, .. }
            | TensorHead::Updated { batch, .. }
            | TensorHead::Statistics { batch, .. } => {
                self.on_replica_frame(batch, ReplicaFrame { from, head, slots });
            }
            TensorHead::ReplicaState { id, .. } | TensorHead::Weight { id, .. }
                if self.commands.is_answered(id) =>
            {
                self.outbox.drop_slots(slots);
            }
            TensorHead::ReplicaState { id, name, of } => {
                let tensor = StateTensor { id, name, of, slots };
                self.transfer.on_tensor(from, tensor, &mut self.outbox);
                self.load_replica_state();
            }
            TensorHead::SnapshotPart { id, part, name, of } => {
                let tensor = PartTensor { id, part, name, of, slots };
                let answered = self.commands.answered();
                self.snapshots.on_tensor(from, tensor, answered, &mut self.outbox);
                self.snapshots.store_complete(id, self.membership.worker, &mut self.outbox);
            }
            TensorHead::Weight { id, name, stage } => {
                let weight = Weight { id, from, stage, name, slots };
                let current = self.current();
                let mut context = Context {
                    membership: &self.membership,
                    links: &self.links,
                    outbox: &mut self.outbox,
                };
                self.loading.on_weight(weight, current, &mut context);
                self.start_load();
            }
            TensorHead::File { id, .. } if self.commands.is_answered(id) && from == Peer::Boss => {
                self.outbox.drop_slots(slots);
            }
            TensorHead::File { id, name } if from == Peer::Boss => {
                let current = self.current();
                let mut context = Context {
                    membership: &self.membership,
                    links: &self.links,
                    outbox: &mut self.outbox,
                };
                self.loading.on_file(id, name, slots, current, &mut context);
                self.start_load();
            }
            TensorHead::State { .. } | TensorHead::Output { .. } | TensorHead::File { .. } => {
                self.outbox.refuse(from, slots, "sent tensors that no worker takes from it");
            }
        }
    }

    /// A message of the boss arrived.
    pub fn on_message(&mut self, now: Micros, message: ToWorker) {
        self.now = now;
        match message {
            ToWorker::Command { id, body } => self.on_command(now, id, body),
            ToWorker::UseRelay { peer } => {
                self.links.relay(peer);
                self.finish_opening();
            }
            ToWorker::Abort { id, batch, gradients } => self.abort(id, batch, gradients),
            ToWorker::TotalNorm { id, norm } => self.total_norm(id, norm),
            ToWorker::MoreState { id, frames } => {
                self.state_frames.more(id, frames, &mut self.outbox);
            }
            ToWorker::Progress(progress) => self.outbox.push(StageEffect::Progress(progress)),
            ToWorker::Stop => {
                self.drop_arrivals();
                self.outbox.push(StageEffect::Finish);
            }
        }
    }

    /// The compute thread completed a task, on which it worked from `span.0` to `span.1`.
    pub fn on_done(
        &mut self,
        now: Micros,
        ticket: Ticket,
        result: Result<Outcome<Slot>, TaskError>,
        span: (Micros, Micros),
    ) {
        self.now = now;
        let result = result.map(|outcome| self.outbox.take_outcome(outcome));
        let Some(purpose) = self.tasks.remove(&ticket) else {
            return self.outbox.drop_slots(result.map_or(Vec::new(), Outcome::into_tensors));
        };
        match (purpose, result) {
            (Purpose::Discard(id), result) => {
                self.outbox.drop_slots(result.map_or(Vec::new(), Outcome::into_tensors));
                self.aborted(id);
            }
            (Purpose::Command(id), Ok(outcome)) if self.is_active(id) => {
                self.command_done(id, outcome);
            }
            (Purpose::Action(id, action), Ok(outcome)) => {
                if let Action::OptimStep { .. } = action {
                    self.commands.step(id);
                }
                if self.is_active(id) {
                    let span = Span { action, start: span.0, end: span.1 };
                    self.action_done(span, outcome);
                } else {
                    self.outbox.drop_slots(outcome.into_tensors());
                }
            }
            (
                Purpose::Command(id) | Purpose::Action(id, _),
                Err(TaskError { failure, updated }),
            ) => {
                if updated {
                    self.commands.step(id);
                }
                if self.is_active(id) {
                    self.fail(id, failure);
                }
            }
            (Purpose::Command(_), Ok(outcome)) => self.outbox.drop_slots(outcome.into_tensors()),
        }
    }

    /// The compute thread hands out a result during a task.
    pub fn on_early_output(&mut self, now: Micros, output: EarlyOutput<Slot>) {
        self.now = now;
        let output = self.outbox.take_early(output);
        match self.round() {
            Some(mut at_work) if !at_work.active.failed => {
                let result = at_work.active.on_early_output(output, &mut at_work.context);
                self.round_advanced(result);
            }
            _ => self.outbox.drop_slots(output.into_tensors()),
        }
    }

    /// The result of a [`StageEffect::Sum`] arrived.
    pub fn on_summed(&mut self, now: Micros, ticket: Ticket, result: Result<Vec<Slot>, Failure>) {
        self.now = now;
        self.outbox.take(result.as_ref().map_or(0, Vec::len));
        match self.round() {
            Some(RoundAtWork { active, mut context })
                if !active.failed && active.reduction.requested(ticket) =>
            {
                let result = active.reduction.on_summed(ticket, result, &mut context);
                self.round_advanced(result);
            }
            _ => self.outbox.drop_slots(result.unwrap_or_default()),
        }
    }

    /// Data was opened, or a microbatch read: a tensor for each column that was asked for.
    pub fn on_data(&mut self, now: Micros, ticket: Ticket, result: Result<Vec<Slot>, Failure>) {
        self.now = now;
        self.outbox.take(result.as_ref().map_or(0, Vec::len));
        let Some(Answer { id, result }) = self.reader.on_data(ticket, result, &mut self.outbox)
        else {
            return;
        };
        match result {
            Ok(read) if !self.is_active(id) => self.outbox.drop_slots(read.into_slots()),
            Err(_) if !self.is_active(id) => {}
            Ok(ReadResult::Opened) => self.done(id),
            Ok(ReadResult::Read(key, tensors)) => self.samples_read(id, key, tensors),
            Err(failure) => self.fail(id, failure),
        }
    }

    /// The current command, if it is not cancelled.
    pub(super) fn current(&self) -> Option<u64> {
        self.job.as_ref().and_then(Job::id)
    }

    /// Whether a command is current and has not failed.
    pub(super) fn is_active(&self, id: u64) -> bool {
        let failed = matches!(&self.job, Some(Job::Round(active)) if active.failed);
        !failed && self.current() == Some(id)
    }

    /// The current round, if the current command is one.
    pub(super) fn round(&mut self) -> Option<RoundAtWork<'_>> {
        let Some(Job::Round(active)) = &mut self.job else { return None };
        let context = RoundContext {
            membership: &self.membership,
            links: &self.links,
            inbox: &mut self.inbox,
            outbox: &mut self.outbox,
        };
        Some(RoundAtWork { active, context })
    }

    pub(super) fn compute(&mut self, purpose: Purpose, task: Task<Slot>) {
        let ticket = self.outbox.compute(task);
        self.tasks.insert(ticket, purpose);
    }

    /// Answers a command that returns nothing.
    pub(super) fn done(&mut self, id: u64) {
        self.answer(id, RoundAnswer::default());
    }

    /// Answers a command, and begins the next one that waits.
    pub(super) fn answer(&mut self, id: u64, answer: RoundAnswer) {
        self.tell_done(id, answer);
        self.next_command();
    }

    /// Answers a command. The next one does not begin before the caller has put everything away.
    pub(super) fn tell_done(&mut self, id: u64, answer: RoundAnswer) {
        self.end_job();
        self.commands.answer(id);
        let RoundAnswer { losses, sent, spans } = answer;
        let (received, answered) = (self.received, self.now);
        self.outbox.tell_boss(ToBoss::Done { id, losses, sent, received, answered, spans });
    }

    pub(super) fn fail(&mut self, id: u64, mut failure: Failure) {
        failure.worker = self.membership.worker;
        match &mut self.job {
            // The boss answers with an abort. Until then nothing more starts.
            Some(Job::Round(active)) => active.failed = true,
            _ => self.end_job(),
        }
        self.outbox.tell_boss(ToBoss::Failed { id, failure });
    }

    /// The current command is over.
    pub(super) fn end_job(&mut self) {
        self.job = None;
        self.loading.end();
        self.transfer.end(&mut self.outbox);
    }
}

/// The results in the answer to a command. Empty for most commands.
#[derive(Default)]
pub(super) struct RoundAnswer {
    /// The weighted loss of each microbatch.
    pub(super) losses: Vec<(u32, f32)>,
    /// The number of frames with tensors that were sent to the boss.
    pub(super) sent: u32,
    /// When each action ran.
    pub(super) spans: Vec<Span>,
}
