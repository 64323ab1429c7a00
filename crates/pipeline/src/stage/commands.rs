//! The commands of the boss, one by one.

use super::change_membership::ReplicaState;
use super::loading::Arriving;
use super::{Job, Purpose, ReplicaGroup, StageSession};
use crate::effect::{Micros, Peer, Residuals, StageEffect};
use crate::ids::{Slot, StageId, WorkerId};
use crate::message::{Assignment, Command, Head, PeerAddress};
use crate::task::Task;
use std::collections::BTreeMap;

/// The most commands that wait for the current one.
const MOST_WAITING: usize = 32;

/// A command that waits.
pub(super) struct Waiting {
    id: u64,
    body: Command,
    /// The norm of its gradients, if it is already known.
    norm: Option<f64>,
}

impl StageSession {
    /// A command arrived. It waits if the last one is not complete: a follower receives the
    /// commands of the others while it still loads its state.
    pub(super) fn on_command(&mut self, now: Micros, id: u64, body: Command) {
        // If it ran again, it would wait for tensors that came before, or undo later work.
        if id <= self.told {
            return self.refuse(Peer::Boss, Vec::new(), "sent a command twice, or out of order".into());
        }
        self.told = id;
        if self.job.is_none() {
            return self.command(now, id, body);
        }
        if self.waiting.len() >= MOST_WAITING {
            let reason = format!("sent a command while {MOST_WAITING} others wait");
            return self.refuse(Peer::Boss, Vec::new(), reason);
        }
        self.waiting.push_back(Waiting { id, body, norm: None });
    }

    /// Begins the next waiting command, if none is current.
    pub(super) fn next_command(&mut self) {
        if self.job.is_some() {
            return;
        }
        let Some(Waiting { id, body, norm }) = self.waiting.pop_front() else { return };
        self.command(self.now, id, body);
        if let Some(norm) = norm {
            self.total_norm(id, norm);
        }
    }

    /// The norm of a round's gradients, which may arrive before the round begins here.
    pub(super) fn total_norm(&mut self, id: u64, norm: f64) {
        if let Some(Job::Round(running)) = self.job.as_mut().filter(|job| job.id() == Some(id)) {
            running.norm = Some(norm);
            self.advance();
        } else if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.id == id) {
            waiting.norm = Some(norm);
        }
    }

    fn command(&mut self, now: Micros, id: u64, body: Command) {
        self.received = now;
        // No worker is at a later round before this one has answered.
        let batch = match &body {
            Command::Run(round) => Some(round.batch),
            _ => None,
        };
        let strays = self.inbox.keep_only(batch);
        self.drop_slots(strays);
        match body {
            Command::Assign(assignment) => self.assign(now, id, *assignment),
            Command::ChangeMembership(change_membership) => self.change_membership(now, id, *change_membership),
            Command::SetOptimizer(spec) => {
                self.residuals(Residuals::Forget);
                self.single(id, Task::SetOptimizer(spec));
            }
            Command::Discard { batch } => self.single(id, Task::Discard { batch, gradients: false }),
            Command::Measure(probes) => {
                self.job = Some(Job::Measure { id, times: None });
                self.compute(Purpose::Command(id), Task::Measure { probes });
            }
            Command::SendState { stage, optimizer } => self.send_state(id, stage, optimizer),
            Command::Keep(keep) => self.keep_copy(id, *keep),
            Command::Copies { run } => self.tell_copies(id, run),
            Command::Restore { tensors, keepers, recall } => self.restore(id, (tensors, keepers), *recall),
            Command::Digest => self.single(id, Task::Digest),
            Command::MakeIds => self.make_ids(id),
            Command::Communicate(ids) => self.communicate(id, ids),
            Command::LoadState { tensors, optimizer } => {
                let what: fn(_) -> _ = match optimizer {
                    true => |tensors| Task::Load { tensors, optimizer: true },
                    false => |tensors| Task::Load { tensors, optimizer: false },
                };
                self.job = Some(Job::Load { id, expected: tensors as usize, what, keepers: Vec::new() });
                self.start_load();
            }
            Command::TakeFiles { files } => {
                let what = |files| Task::Files { files };
                self.job = Some(Job::Load { id, expected: files as usize, what, keepers: Vec::new() });
                self.start_load();
            }
            Command::OpenData(spec) => self.open_data(id, *spec),
            Command::Run(round) => self.run(id, *round),
        }
    }

    /// Sends the parameters of stages of which this is the first replica, and the optimizer state
    /// that no earlier replica has.
    fn send_state(&mut self, id: u64, stage: Option<StageId>, optimizer: bool) {
        let snapshot = self.snapshot(self.worker, stage, optimizer);
        self.single(id, snapshot);
    }

    /// The task that copies the state that `of` sends. `of` is this worker, or the first replica of
    /// its stages.
    pub(super) fn snapshot(&self, of: Option<WorkerId>, stage: Option<StageId>, optimizer: bool) -> Task<Slot> {
        let wanted = || self.stages.iter().map(|spec| spec.stage).filter(|id| stage.is_none_or(|only| only == *id));
        let speaks = |stage: &StageId| of.is_some() && self.stage_placement.first(*stage) == of;
        let shares = |stage: &StageId| self.groups.get(stage).is_some_and(ReplicaGroup::is_sharded);
        let parameters = wanted().filter(speaks).collect();
        let optimizer = wanted().filter(|stage| optimizer && (speaks(stage) || shares(stage))).collect();
        Task::Snapshot { parameters, optimizer }
    }

    fn assign(&mut self, now: Micros, id: u64, assignment: Assignment) {
        let Assignment { worker, stages, stage_placement, buckets, sharding, peers, seed } = assignment;
        if !stage_placement.are_possible() {
            return self.refuse(Peer::Boss, Vec::new(), "sent stages with replicas that cannot be".into());
        }
        let over = self.early.cancel_until(u64::MAX);
        self.drop_slots(over);
        self.void_keeping(id);
        self.residuals(Residuals::Forget);
        self.worker = Some(worker);
        self.groups = ReplicaGroup::of(&stages, &stage_placement, &[], worker, (buckets, sharding));
        self.stages = stages.clone();
        (self.stage_placement, self.buckets, self.sharding) = (stage_placement, buckets, sharding);
        self.job = Some(Job::Assign { id, built: false });
        let shard_ids = self.groups.iter().filter_map(|(stage, group)| Some((*stage, group.shard_id()?))).collect();
        self.compute(Purpose::Command(id), Task::Build { stages, buckets, sharding, shard_ids, seed });
        self.links.forget_relays();
        self.open_links(now, worker, &peers);
    }

    pub(super) fn open_links(&mut self, now: Micros, worker: WorkerId, peers: &[PeerAddress]) {
        let opening = self.links.open(now, worker, peers);
        let dials = opening.dial.into_iter().map(|(peer, address)| StageEffect::Dial { peer, address });
        self.effects.extend(dials);
        for peer in opening.unreachable {
            let reason = "one of them makes no direct connections".to_string();
            self.tell_boss(Head::LinkFailed { peer, reason, was_up: false });
        }
    }

    /// Answers a command that waits for links, once they are up.
    pub(super) fn finish_opening(&mut self) {
        if !self.links.settled() {
            return;
        }
        self.give_state();
        let id = match &self.job {
            Some(Job::Assign { id, built: true }) => *id,
            Some(Job::ChangeMembership(membership_change)) if membership_change.is_done() => membership_change.id,
            _ => return,
        };
        self.done(id, Vec::new(), 0, Vec::new());
    }

    pub(super) fn finish_measuring(&mut self) {
        if !self.links.all_measured() {
            return;
        }
        if let Some(Job::Measure { id, times: Some(times) }) = &mut self.job {
            let (id, times) = (*id, std::mem::take(times));
            for report in self.links.reports() {
                self.tell_boss(report);
            }
            self.tell_boss(Head::Measured { id, times });
            self.done(id, Vec::new(), 0, Vec::new());
        }
    }

    pub(super) fn single(&mut self, id: u64, task: Task<Slot>) {
        self.job = Some(Job::Task { id });
        self.compute(Purpose::Command(id), task);
    }

    pub(super) fn abort(&mut self, id: u64, batch: Option<u64>, gradients: bool) {
        let unloaded = self.loads.remove(&id).map(Arriving::into_tensors).unwrap_or_default();
        let untaken = self.states.remove(&id).unwrap_or_default();
        let untaken = untaken.into_values().flat_map(ReplicaState::into_tensors);
        self.drop_slots(unloaded.into_iter().chain(untaken).map(|(_, slot)| slot).collect());
        if let Some(batch) = batch {
            let slots = self.inbox.cancel(batch).into_iter().chain(self.early.cancel(batch)).collect();
            self.drop_slots(slots);
        }
        if self.cancel_keeping(id) {
            let stepped = self.stepped == Some(id);
            return self.tell_boss(Head::Aborted { id, stepped });
        }
        if let Some(place) = self.waiting.iter().position(|waiting| waiting.id == id) {
            self.waiting.remove(place);
            return self.tell_boss(Head::Aborted { id, stepped: false });
        }
        if let Some(Job::Abort { id: cleared }) = self.job {
            // The answer comes once, when that is complete. Other commands left nothing.
            if cleared != id {
                self.tell_boss(Head::Aborted { id, stepped: self.stepped == Some(id) });
            }
            return;
        }
        if self.job.as_ref().and_then(Job::id).is_some_and(|at_work| at_work != id) {
            let stepped = self.stepped == Some(id);
            return self.tell_boss(Head::Aborted { id, stepped });
        }
        if let Some(Job::ChangeMembership(membership_change)) = &mut self.job {
            let copied = membership_change.give_up();
            self.drop_slots(copied);
        }
        if gradients {
            self.residuals(Residuals::Restore);
        }
        self.interrupt();
        // The compute thread works in order: when this task completes, all earlier ones are
        // complete.
        self.answered = self.answered.max(id);
        self.job = Some(Job::Abort { id });
        self.compute(Purpose::Discard(id), Task::Discard { batch: batch.unwrap_or(0), gradients });
    }

    /// The run ended. Drops everything that arrived for it, duplicates included.
    pub(super) fn let_go_of_all(&mut self) {
        self.void_keeping(u64::MAX);
        let mut slots = self.inbox.keep_only(None);
        slots.extend(self.early.cancel_until(u64::MAX));
        let loads = std::mem::take(&mut self.loads).into_values().flat_map(Arriving::into_tensors);
        let states = std::mem::take(&mut self.states).into_values().flat_map(BTreeMap::into_values);
        let tensors = loads.chain(states.flat_map(ReplicaState::into_tensors));
        slots.extend(tensors.map(|(_, slot)| slot));
        self.drop_slots(slots);
    }

    pub(super) fn aborted(&mut self, id: u64) {
        self.job = None;
        let stepped = self.stepped == Some(id);
        self.tell_boss(Head::Aborted { id, stepped });
        self.next_command();
    }
}
