//! The session during a round: arriving tensors, actions, and their results.

use super::active_round::{ActiveRound, ComputeThread, Next};
use super::early_frames::ReplicaFrame;
use super::inbox::Item;
use super::job::{Job, Purpose};
use super::reading::ReadTensor;
use super::round_check::check;
use super::session::{RoundAnswer, RoundAtWork, StageSession};
use crate::effect::{Peer, Residuals, StageEffect};
use crate::ids::{MicrobatchKey, Slot, StageId};
use crate::message::{Failure, Round, Span, TensorHead};
use crate::task::Outcome;

/// The number of tasks at the compute thread: one at work and one waiting. So it never idles for
/// lack of a message, and an abort waits for at most these. If the order is free, the waiting task
/// is chosen early only if no task that may still arrive would precede it. So the result is the
/// same as with the latest possible choice.
const LOOKAHEAD: usize = 2;

impl StageSession {
    /// Begins a round.
    pub(super) fn run(&mut self, id: u64, mut round: Round) {
        if let Err(reason) = check(&round, &self.membership) {
            return self.outbox.refuse_boss(format!("sent {reason}"));
        }
        self.snapshots.retain_run(&mut self.outbox);
        let batch = round.batch;
        let samples = round.samples.take();
        self.job = Some(Job::Round(Box::new(ActiveRound::new(id, round, &self.membership))));
        // Frames of other replicas may have arrived before the command.
        // A round without actions may end with the first of them.
        while self.is_active(id) {
            let Some(frame) = self.early_frames.pop(batch) else { break };
            self.on_replica_frame(batch, frame);
        }
        match (samples, &self.job) {
            (Some(samples), Some(Job::Round(active))) if active.id == id => {
                let stages = &self.membership.stages;
                self.reader.begin_round(id, &active.round, samples, stages, &mut self.outbox);
            }
            _ => {}
        }
        self.advance();
    }

    /// A tensor of a round arrived.
    pub(super) fn arrive(
        &mut self,
        from: Peer,
        key: MicrobatchKey,
        stage: StageId,
        item: Item,
        slots: Vec<Slot>,
    ) {
        // The sender may have left the stages: frames that the boss relays can arrive after its
        // commands.
        if self.inbox.is_void(key.batch) {
            return self.outbox.drop_slots(slots);
        }
        if !self.membership.expects(from, stage, item, slots.len()) {
            let reason = format!("sent tensors that {stage} does not take from it");
            return self.outbox.refuse(from, slots, reason);
        }
        match self.inbox.put(key, stage, item, slots) {
            Ok(()) => {
                if let Some(RoundAtWork { active, mut context }) = self.round() {
                    active.on_arrived(stage, item, &mut context);
                }
                self.advance();
            }
            Err((slots, None)) => self.outbox.drop_slots(slots),
            Err((slots, Some(reason))) => self.outbox.refuse(from, slots, reason),
        }
    }

    /// A frame of another replica arrived, perhaps for a round that has not begun here. Then it
    /// waits: the allowed senders depend on the placement in that round.
    pub(super) fn on_replica_frame(&mut self, batch: u64, frame: ReplicaFrame) {
        if self.inbox.is_void(batch) {
            return self.outbox.drop_slots(frame.slots);
        }
        let active = match &self.job {
            Some(Job::Round(active)) if active.round.batch == batch => active,
            _ => {
                let from = frame.from;
                if let Err((slots, reason)) = self.early_frames.put(batch, frame) {
                    self.outbox.refuse(from, slots, reason);
                }
                return;
            }
        };
        let ReplicaFrame { from, head, slots } = frame;
        let replica = |stage| self.membership.replica(stage, from);
        let (stage, index, item) = match head {
            TensorHead::Sum { stage, bucket, node, .. } => {
                (stage, 0, Item::Sum { bucket, node, replica: replica(stage) })
            }
            TensorHead::Reduced { stage, bucket, .. } => {
                (stage, 0, Item::Reduced { bucket, replica: replica(stage) })
            }
            TensorHead::Updated { stage, bucket, visit, .. } => {
                (stage, visit, Item::Updated { bucket, replica: replica(stage) })
            }
            TensorHead::Statistics { stage, .. } => {
                (stage, 0, Item::Statistics { replica: replica(stage) })
            }
            _ => return self.outbox.refuse(from, slots, "sent what is nothing between replicas"),
        };
        if index > 0 && !active.gathers_again(stage, index) {
            let reason = format!("sent parameters of {stage} more often than they are gathered");
            return self.outbox.refuse(from, slots, reason);
        }
        self.arrive(from, MicrobatchKey { batch, index }, stage, item, slots);
    }

    /// Samples of the current round are read.
    pub(super) fn samples_read(&mut self, id: u64, key: MicrobatchKey, tensors: Vec<ReadTensor>) {
        let mut problem = None;
        for ReadTensor { stage, item, slot } in tensors {
            if let Err((slots, reason)) = self.inbox.put(key, stage, item, vec![slot]) {
                self.outbox.drop_slots(slots);
                problem = problem.or(reason);
            }
        }
        let failure = |problem| Failure::new(format!("this worker's own reading {problem}"));
        match problem {
            None => self.advance(),
            Some(problem) => self.fail(id, failure(problem)),
        }
    }

    /// The norm of a round's gradients arrived, perhaps before the round begins here.
    pub(super) fn total_norm(&mut self, id: u64, norm: f64) {
        match &mut self.job {
            Some(Job::Round(active)) if active.id == id => {
                active.set_norm(norm);
                self.advance();
            }
            _ => self.commands.set_norm(id, norm),
        }
    }

    /// An action of the current round is complete.
    pub(super) fn action_done(&mut self, span: Span, outcome: Outcome<Slot>) {
        let result = match self.round() {
            Some(RoundAtWork { active, mut context }) => {
                active.on_done(span, outcome, &mut context)
            }
            None => {
                self.outbox.drop_slots(outcome.into_tensors());
                Ok(())
            }
        };
        self.round_advanced(result);
    }

    /// A machine of the current round has worked.
    pub(super) fn round_advanced(&mut self, result: Result<(), Failure>) {
        match (result, self.current()) {
            (Err(failure), Some(id)) => self.fail(id, failure),
            _ => self.advance(),
        }
    }

    /// Starts the actions whose tensors have arrived, and answers the round once it is over. Called
    /// after every arrival and every result.
    pub(super) fn advance(&mut self) {
        while self.tasks.len() < LOOKAHEAD {
            let Some(Job::Round(active)) = &mut self.job else { return };
            if active.failed {
                return;
            }
            let compute_thread = match self.tasks.is_empty() {
                true => ComputeThread::Idle,
                false => ComputeThread::Busy,
            };
            let id = active.id;
            match active.next(compute_thread, &self.membership, &mut self.inbox) {
                Ok(Some(Next { action, task })) => self.compute(Purpose::Action(id, action), task),
                Ok(None) => break,
                Err(failure) => return self.fail(id, failure),
            }
        }
        let Some(Job::Round(active)) = &mut self.job else { return };
        if !active.is_over() || !self.tasks.is_empty() {
            return;
        }
        let (id, complete) = (active.id, active.check_actions());
        // Before anything counts as done: then the step can be repeated. Both are checked, because
        // each difference is reported once.
        if let Err(failure) = complete.and(self.settle_slots()) {
            return self.fail(id, failure);
        }
        let Some(Job::Round(active)) = &mut self.job else { return };
        let (batch, used) = (active.round.batch, active.uses_compressed());
        if active.round.is_step() {
            self.last_step = Some(active.round.step);
        }
        let answer = RoundAnswer {
            losses: std::mem::take(&mut active.losses),
            sent: active.sent,
            spans: std::mem::take(&mut active.spans),
        };
        match used {
            Some(true) => self.residuals(Residuals::Keep),
            Some(false) => self.residuals(Residuals::Restore),
            None => {}
        }
        let over = self.early_frames.cancel_until(batch);
        self.outbox.drop_slots(over);
        self.answer(id, answer);
    }

    /// Settles the residuals of compression.
    pub(super) fn residuals(&mut self, what: Residuals) {
        if !self.membership.groups.is_empty() {
            self.outbox.push(StageEffect::Residuals(what));
        }
    }
}
