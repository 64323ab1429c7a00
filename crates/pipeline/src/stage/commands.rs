//! The session between rounds: the commands of the boss, and their results.

use super::command_queue::Waiting;
use super::context::Context;
use super::job::{Job, Purpose};
use super::loading::{Load, LoadKind, Loaded};
use super::membership::Membership;
use super::session::{RoundAnswer, StageSession};
use super::state_transfer::Transfer;
use crate::effect::{Micros, Residuals, StageEffect};
use crate::ids::{Slot, StageId};
use crate::message::{Assignment, ChangeMembership, Command, Failure, PeerAddress, ToBoss};
use crate::peer_snapshot::{SendSnapshot, StoreSnapshot};
use crate::replicas::UniqueId;
use crate::task::{BuildSettings, LoadContent, Outcome, Task};
use crate::{StateForm, TensorMeta};

impl StageSession {
    /// A command arrived. It waits if the last one is not complete.
    pub(super) fn on_command(&mut self, now: Micros, id: u64, body: Command) {
        if let Err(reason) = self.commands.arrive(id) {
            return self.outbox.refuse_boss(reason);
        }
        if self.job.is_none() {
            return self.command(now, id, body);
        }
        if let Err(reason) = self.commands.push(id, body) {
            self.outbox.refuse_boss(reason);
        }
    }

    /// Begins the next waiting command, if none is current.
    pub(super) fn next_command(&mut self) {
        if self.job.is_some() {
            return;
        }
        let Some(Waiting { id, body, norm }) = self.commands.pop() else { return };
        self.command(self.now, id, body);
        if let Some(norm) = norm {
            self.total_norm(id, norm);
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
        self.outbox.drop_slots(strays);
        match body {
            Command::Assign(assignment) => self.assign(now, id, *assignment),
            Command::ChangeMembership(change) => self.change_membership(now, id, *change),
            Command::SetOptimizer(spec) => {
                self.residuals(Residuals::Forget);
                self.single(id, Task::SetOptimizer(spec));
            }
            Command::Discard { batch } => {
                self.single(id, Task::Discard { batch, gradients: false });
            }
            Command::Measure(probes) => {
                self.job = Some(Job::Measure { id, times: None });
                self.compute(Purpose::Command(id), Task::Measure { probes });
            }
            // The parameters of stages of which this is the first replica, and the optimizer state
            // that no earlier replica has.
            Command::SendState { stage, optimizer, form, window } => {
                self.job = Some(Job::SendState { id, window });
                let me = self.membership.worker;
                let task = self.membership.snapshot(me, stage, optimizer, form);
                self.compute(Purpose::Command(id), task);
            }
            Command::StoreSnapshot(command) => self.store_snapshot(id, *command),
            Command::ListSnapshots { run } => {
                let snapshots = self.snapshots.list(run);
                self.outbox.tell_boss(ToBoss::Snapshots { id, snapshots });
                self.done(id);
            }
            Command::RestoreSnapshot { tensors, senders, send } => {
                let kind = LoadKind::State(LoadContent::WholeState);
                self.load(Load { id, expected: tensors as usize, kind, senders });
                self.send_stored(id, *send);
            }
            Command::Digest => self.single(id, Task::Digest),
            Command::MakeIds => {
                let first = |stage: &StageId| {
                    self.membership.rank(*stage).is_some_and(|rank| rank.replica == 0)
                };
                let stages = self.membership.stages.iter().map(|spec| spec.stage);
                self.single(id, Task::MakeIds { stages: stages.filter(first).collect() });
            }
            Command::Communicate(ids) => self.communicate(id, ids),
            Command::LoadState { tensors, content } => {
                let kind = LoadKind::State(content);
                self.load(Load { id, expected: tensors as usize, kind, senders: Vec::new() });
                self.start_load();
            }
            Command::TakeFiles { files } => {
                let kind = LoadKind::Files;
                self.load(Load { id, expected: files as usize, kind, senders: Vec::new() });
                self.start_load();
            }
            Command::OpenData(spec) => {
                self.job = Some(Job::Task { id });
                self.reader.open(id, *spec, &mut self.outbox);
            }
            Command::Run(round) => self.run(id, *round),
        }
    }

    fn single(&mut self, id: u64, task: Task<Slot>) {
        self.job = Some(Job::Task { id });
        self.compute(Purpose::Command(id), task);
    }

    fn assign(&mut self, now: Micros, id: u64, assignment: Assignment) {
        let membership = match Membership::assigned(&assignment) {
            Ok(membership) => membership,
            Err(reason) => return self.outbox.refuse_boss(reason),
        };
        let over = self.early_frames.cancel_until(u64::MAX);
        self.outbox.drop_slots(over);
        self.snapshots.void_before(id, &mut self.outbox);
        self.residuals(Residuals::Forget);
        let shard_ids = membership.shard_ids();
        self.membership = membership;
        self.job = Some(Job::Assign { id, built: false });
        let peers = assignment.peers;
        let settings = BuildSettings {
            buckets: assignment.buckets,
            sharding: assignment.sharding,
            shard_ids,
            seed: assignment.seed,
            determinism: assignment.determinism,
            initialization: assignment.initialization,
        };
        let task = Task::Build { stages: assignment.stages, settings };
        self.compute(Purpose::Command(id), task);
        self.links.forget_relays();
        self.open_links(now, &peers);
    }

    fn change_membership(&mut self, now: Micros, id: u64, change: ChangeMembership) {
        let ChangeMembership { stage_placement, followers, peers, give, take } = change;
        let membership = self.membership.changed(stage_placement, &followers);
        let membership = match membership {
            Ok(membership) => membership,
            Err(reason) => return self.outbox.refuse_boss(reason),
        };
        // The shards change, so the residuals of the old ones are void.
        self.residuals(Residuals::Forget);
        self.membership = membership;
        self.job = Some(Job::ChangeMembership { id });
        let copies = !give.is_empty();
        self.transfer.begin(Transfer::new(id, give, take));
        self.open_links(now, &peers);
        if copies {
            self.compute(Purpose::Command(id), self.membership.full_snapshot());
        }
        self.load_replica_state();
        self.finish_opening();
    }

    /// Loads the state of another replica for the current command, once it is complete.
    pub(super) fn load_replica_state(&mut self) {
        if let (Some(task), Some(id)) = (self.transfer.poll(&mut self.outbox), self.current()) {
            self.compute(Purpose::Command(id), task);
        }
    }

    fn open_links(&mut self, now: Micros, peers: &[PeerAddress]) {
        let Some(me) = self.membership.worker else { return };
        let opening = self.links.open(now, me, peers);
        for (peer, address) in opening.dial {
            self.outbox.push(StageEffect::Dial { peer, address });
        }
        for address in opening.await_from {
            self.outbox.push(StageEffect::PunchHole { address });
        }
        for peer in opening.unreachable {
            let reason = "one of them makes no direct connections".to_string();
            self.outbox.tell_boss(ToBoss::LinkFailed { peer, reason, was_up: false });
        }
    }

    /// Answers a command that waits for links, once they are up.
    pub(super) fn finish_opening(&mut self) {
        if !self.links.settled() {
            return;
        }
        self.transfer.send(&self.links, &mut self.outbox);
        match self.job {
            Some(Job::Assign { id, built: true }) => self.done(id),
            Some(Job::ChangeMembership { id }) if self.transfer.is_done() => self.done(id),
            _ => {}
        }
    }

    /// Answers a measurement, once the layers and the links are measured.
    pub(super) fn finish_measuring(&mut self) {
        if !self.links.all_measured() {
            return;
        }
        if let Some(Job::Measure { id, times: Some(times) }) = &mut self.job {
            let (id, times) = (*id, std::mem::take(times));
            for report in self.links.reports() {
                self.outbox.tell_boss(report);
            }
            self.outbox.tell_boss(ToBoss::Measured { id, times });
            self.done(id);
        }
    }

    fn load(&mut self, load: Load) {
        self.job = Some(Job::Load { id: load.id });
        self.loading.begin(load);
    }

    /// Starts the current load, once all its tensors have arrived.
    pub(super) fn start_load(&mut self) {
        let mut context =
            Context { membership: &self.membership, links: &self.links, outbox: &mut self.outbox };
        match self.loading.poll(&mut context) {
            Some(Loaded { id, result: Ok(task) }) => self.single(id, task),
            Some(Loaded { id, result: Err(failure) }) => self.fail(id, failure),
            None => {}
        }
    }

    /// Sends the stored tensors that the current load asks this worker for, and starts the load.
    fn send_stored(&mut self, id: u64, command: SendSnapshot) {
        let SendSnapshot { snapshot, tensors } = command;
        for (part, name, stage) in tensors {
            let context = Context {
                membership: &self.membership,
                links: &self.links,
                outbox: &mut self.outbox,
            };
            let to = match self.snapshots.has(snapshot, part, &name) {
                true => self.loading.receivers(id, stage, &name, &context),
                false => Err(format!("`{name}` of step {} is not stored here", snapshot.step)),
            };
            match to {
                Ok(to) => self.outbox.push(StageEffect::SendSnapshot { to, snapshot, part, name }),
                Err(problem) => return self.fail(id, Failure::new(problem)),
            }
        }
        self.start_load();
    }

    /// Copies this worker's part of a snapshot, and stores arriving parts.
    fn store_snapshot(&mut self, id: u64, command: StoreSnapshot) {
        let (stage, make) = (command.stage, command.make);
        if make.is_some_and(|make| !self.membership.has_state_of(make.of, stage)) {
            let reason = "asked for a snapshot of what this worker does not have";
            return self.outbox.refuse_boss(reason);
        }
        self.snapshots.begin(id, command, &mut self.outbox);
        match make {
            Some(make) => {
                self.job = Some(Job::StoreSnapshot { id });
                let task = self.membership.snapshot(Some(make.of), stage, true, StateForm::Tensors);
                self.compute(Purpose::Command(id), task);
            }
            None => self.done(id),
        }
        self.snapshots.store_complete(id, self.membership.worker, &mut self.outbox);
    }

    /// Makes communicators with the other replicas of stages.
    fn communicate(&mut self, id: u64, ids: Vec<(StageId, UniqueId)>) {
        let mut stages = Vec::new();
        for (stage, unique) in ids {
            let Some(rank) = self.membership.rank(stage) else {
                let reason = format!("sent an id for a communicator of {stage}, which needs none");
                return self.outbox.refuse_boss(reason);
            };
            stages.push((stage, rank, unique));
        }
        // All replicas make them in one order, or they would wait for each other.
        if stages.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            return self.outbox.refuse_boss("sent ids for communicators out of order");
        }
        self.job = Some(Job::Communicate { id });
        self.compute(Purpose::Command(id), Task::Communicate { stages });
    }

    /// A command that is one task is carried out.
    pub(super) fn command_done(&mut self, id: u64, outcome: Outcome<Slot>) {
        match (&mut self.job, outcome) {
            (Some(Job::Assign { built, .. }), _) => {
                *built = true;
                self.finish_opening();
            }
            (Some(Job::ChangeMembership { .. }), outcome) => {
                match outcome {
                    Outcome::State { tensors, .. } => {
                        self.transfer.on_copied(tensors, &mut self.outbox);
                    }
                    other => {
                        self.outbox.drop_slots(other.into_tensors());
                        self.transfer.on_loaded();
                    }
                }
                self.finish_opening();
            }
            (Some(Job::Measure { times, .. }), Outcome::Measured { times: measured }) => {
                *times = Some(measured);
                self.finish_measuring();
            }
            (Some(Job::SendState { window, .. }), Outcome::State { heads, tensors }) => {
                let window = *window;
                self.send_state(id, window, heads, tensors);
            }
            (Some(Job::StoreSnapshot { .. }), Outcome::State { tensors, .. }) => {
                let mut context = Context {
                    membership: &self.membership,
                    links: &self.links,
                    outbox: &mut self.outbox,
                };
                match self.snapshots.send_part(id, tensors, &mut context) {
                    Ok(()) => self.done(id),
                    Err(failure) => self.fail(id, failure),
                }
            }
            (_, outcome) => self.answer_task(id, outcome),
        }
    }

    /// Answers a command with the outcome of its task.
    fn answer_task(&mut self, id: u64, outcome: Outcome<Slot>) {
        match outcome {
            Outcome::Digests { digests } => self.outbox.tell_boss(ToBoss::Digests { id, digests }),
            Outcome::UniqueIds { ids } => self.outbox.tell_boss(ToBoss::UniqueIds { id, ids }),
            other => self.outbox.drop_slots(other.into_tensors()),
        }
        self.done(id);
    }

    /// Answers a command with state, which follows in frames as the boss takes them.
    fn send_state(
        &mut self,
        id: u64,
        window: u32,
        heads: Vec<(String, TensorMeta)>,
        tensors: Vec<(String, Slot)>,
    ) {
        let sent = u32::try_from(tensors.len()).unwrap_or(u32::MAX);
        self.outbox.tell_boss(ToBoss::StateHeads { id, heads });
        self.tell_done(id, RoundAnswer { sent, ..RoundAnswer::default() });
        self.state_frames.begin(id, window, tensors, &mut self.outbox);
        self.next_command();
    }

    /// Cancels a command, and drops its arrivals.
    pub(super) fn abort(&mut self, id: u64, batch: Option<u64>, gradients: bool) {
        let waiting = self.state_frames.cancel(id);
        if !waiting.is_empty() {
            // The command was answered, and these are all that it left.
            self.outbox.drop_slots(waiting);
            return self.outbox.tell_boss(ToBoss::Aborted { id, stepped: false });
        }
        let mut slots = self.loading.cancel(id);
        slots.extend(self.transfer.cancel(id));
        self.outbox.drop_slots(slots);
        if let Some(batch) = batch {
            let mut slots = self.inbox.cancel(batch);
            slots.extend(self.early_frames.cancel(batch));
            self.outbox.drop_slots(slots);
        }
        let stepped = self.commands.has_stepped(id);
        if self.snapshots.cancel(id, self.commands.answered(), &mut self.outbox) {
            return self.outbox.tell_boss(ToBoss::Aborted { id, stepped });
        }
        if self.commands.cancel(id) {
            return self.outbox.tell_boss(ToBoss::Aborted { id, stepped: false });
        }
        match &self.job {
            // The answer comes once, when that is complete.
            Some(Job::Abort { id: cleared }) if *cleared == id => return,
            // Another command left nothing.
            Some(Job::Abort { .. }) => {
                return self.outbox.tell_boss(ToBoss::Aborted { id, stepped })
            }
            Some(job) if job.id() != Some(id) => {
                return self.outbox.tell_boss(ToBoss::Aborted { id, stepped });
            }
            _ => {}
        }
        self.interrupt_and_end(gradients);
        // The compute thread works in order: when this task completes, all earlier ones are
        // complete.
        self.commands.answer(id);
        self.job = Some(Job::Abort { id });
        self.compute(Purpose::Discard(id), Task::Discard { batch: batch.unwrap_or(0), gradients });
    }

    /// Ends the current command, whose task may wait for other workers.
    fn interrupt_and_end(&mut self, gradients: bool) {
        let waits = match &self.job {
            Some(Job::Round(active)) => active.round.reduction.is_collective(),
            Some(Job::Communicate { .. }) => true,
            _ => false,
        };
        self.end_job();
        if gradients {
            self.residuals(Residuals::Restore);
        }
        if waits {
            self.outbox.push(StageEffect::Interrupt);
        }
    }

    /// The compute thread has cleared the remains of a cancelled command.
    pub(super) fn aborted(&mut self, id: u64) {
        self.end_job();
        let stepped = self.commands.has_stepped(id);
        self.outbox.tell_boss(ToBoss::Aborted { id, stepped });
        self.next_command();
    }

    /// The run ended. Drops everything that arrived for it, duplicates included.
    pub(super) fn drop_arrivals(&mut self) {
        self.snapshots.void_before(u64::MAX, &mut self.outbox);
        let mut slots = self.inbox.keep_only(None);
        slots.extend(self.early_frames.cancel_until(u64::MAX));
        slots.extend(self.loading.cancel_all());
        slots.extend(self.transfer.cancel_all());
        slots.extend(self.state_frames.cancel_all());
        self.outbox.drop_slots(slots);
    }
}
