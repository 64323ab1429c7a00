//! Workers that join and leave during a run.
//!
//! A new worker is first prepared ([`Instruction::Prepare`]), beside the work of the others.
//! Between two rounds the boss announces the new placement ([`Request::ChangeMembership`]) and the
//! followers. A follower receives the state of a replica and the sums of each later round, but no
//! microbatches, and no worker waits for it. When it has nearly caught up, it becomes a replica
//! with the next change of membership.
//!
//! A worker that is told to leave goes between two requests. The last worker of a stage stays until
//! another one has the stage, and each round waits for the follower that is to have it. A worker
//! that is lost ends the current round, unless every other worker already has the data for its
//! update. Then the round completes without it. After the change of membership the round is
//! repeated, or the next one begins.

use super::commands::{assignment, command, send_files};
use super::round_frames::round;
use super::{
    Answer, BossSession, Instruction, Job, MembershipChange, Phase, Prepare, Request, RunRequest,
};
use crate::effect::{BossEffect, Message, Micros};
use crate::ids::{StageId, WorkerId};
use crate::message::{ChangeMembership, Command, Failure, PeerAddress, Progress, ToBoss, ToWorker};
use crate::plan::{Plan, StageSpec};
use crate::round_outputs::RoundOutputs;
use crate::schedule::Action;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// A worker in preparation.
pub(super) struct Preparing {
    request: u64,
    /// The last command that was sent to it.
    last: u64,
}

/// A worker that repeats the steps of the others, and that no worker waits for.
pub(super) struct Follower {
    /// The worker with the same stages.
    replica: WorkerId,
    /// The worker that sent its state, and the command.
    state_sender: WorkerId,
    started_with: u64,
    /// Commands that it has not answered.
    unanswered: BTreeSet<u64>,
    /// Set if a worker was lost before all commands were answered: its frames may never arrive.
    doubtful: bool,
}

impl Follower {
    /// Whether the state has arrived with which it began.
    fn has_state(&self) -> bool {
        !self.unanswered.contains(&self.started_with)
    }

    /// Whether it has followed since that command.
    pub(super) fn started_with(&self, id: u64) -> bool {
        self.started_with == id
    }
}

impl Request {
    /// Whether the request can run while workers are missing, and helps then.
    pub(super) fn recovers(&self) -> bool {
        matches!(
            self,
            Request::Instruct(Instruction::Stop)
                | Request::Instruct(Instruction::Prepare(_))
                | Request::ChangeMembership(_)
        )
    }
}

impl BossSession {
    /// Allows workers to join and leave, and the plan to change with [`Request::ChangeMembership`].
    pub fn open(&mut self) {
        self.admits_workers = true;
    }

    /// The lost workers, with the reasons.
    pub fn lost(&self) -> impl Iterator<Item = (WorkerId, &str)> {
        self.lost.iter().map(|(worker, reason)| (*worker, reason.as_str()))
    }

    /// A worker joined. It accepts direct connections at this address, if any. It gets the next
    /// number.
    pub fn on_joined(&mut self, address: Option<SocketAddr>) -> WorkerId {
        let worker = WorkerId(self.setup.addresses.len() as u16);
        self.setup.addresses.push(address);
        worker
    }

    /// Sends a worker the progress of the run.
    pub fn tell(&mut self, worker: WorkerId, progress: Progress) {
        if self.alive(worker) {
            let body = ToWorker::Progress(progress);
            self.outbox.push(BossEffect::Tell(vec![Message { to: worker, body }]));
        }
    }

    pub(super) fn can_change(&self, request: &Request) -> Result<(), Failure> {
        let refused = |text: String| Err(Failure::new(text));
        match request {
            Request::Instruct(Instruction::Prepare(prepare)) => {
                let worker = prepare.worker;
                let free =
                    !self.setup.plan.stage_placement.is_member(worker) && !self.is_joining(worker);
                match self.alive(worker) {
                    false => Err(Failure::lost("it has left").on(worker)),
                    true if !free => refused(format!("{worker} is at work already")),
                    true => Ok(()),
                }
            }
            Request::ChangeMembership(membership_change) => {
                let (new, old) = (&membership_change.plan, &self.setup.plan);
                let followers = &membership_change.followers;
                let left = new
                    .stage_placement
                    .members()
                    .into_iter()
                    .chain(followers.keys().copied())
                    .find(|w| !self.alive(*w));
                if let Some(worker) = left {
                    return Err(Failure::lost("it has left").on(worker));
                }
                if let Some((stage, _)) =
                    new.stage_placement.iter().find(|(_, workers)| workers.is_empty())
                {
                    return refused(format!("no worker has {stage} any more"));
                }
                let guided = |(follower, replica): (&WorkerId, &WorkerId)| {
                    new.stage_placement.is_member(*replica)
                        && !new.stage_placement.is_member(*follower)
                };
                let there = |worker: &WorkerId| {
                    self.followers.get(worker).is_none_or(|f| f.unanswered.is_empty())
                };
                let there = new.stage_placement.members().iter().all(there);
                if new.sharding.is_some() || old.sharding.is_some() {
                    return refused("sharded state cannot move to other workers".into());
                }
                match new.stages == old.stages
                    && followers.iter().all(guided)
                    && self.model.distributed
                    && there
                {
                    true => Ok(()),
                    false => refused(
                        "a plan with other stages, with a follower without a replica, or with one \
                         that has not caught up"
                            .into(),
                    ),
                }
            }
            _ => Ok(()),
        }
    }

    pub(super) fn prepare(&mut self, number: u64, prepare: Prepare) {
        let Prepare { worker, plan, files, optimizer, data } = prepare;
        let mut next = || {
            self.next_id += 1;
            self.next_id - 1
        };
        let mut sends = Vec::new();
        if !files.is_empty() {
            sends.extend(send_files(next(), files, &[worker]));
        }
        let mut assignment = assignment(&plan, &self.setup, worker);
        // The others accept its connection at any time.
        assignment.peers.iter_mut().for_each(|peer| peer.dial = true);
        let reads = assignment.stages.iter().any(StageSpec::takes_samples);
        let data = data.into_iter().filter(|_| reads).map(|spec| Command::OpenData(Box::new(spec)));
        let mut commands =
            vec![Command::Assign(Box::new(assignment)), Command::SetOptimizer(optimizer)];
        commands.extend(data.chain([Command::Measure(Vec::new())]));
        let commands: Vec<_> =
            commands.into_iter().map(|body| command(worker, next(), body)).collect();
        let last = self.next_id - 1;
        sends.extend(commands.into_iter().map(|command| BossEffect::Tell(vec![command])));
        self.outbox.extend(sends);
        self.preparing.insert(worker, Preparing { request: number, last });
    }

    /// Whether a worker's frame does not belong to the current request.
    pub(super) fn is_joining(&self, worker: WorkerId) -> bool {
        self.preparing.contains_key(&worker) || self.followers.contains_key(&worker)
    }

    /// Handles a message of a worker in preparation or of a follower. Returns whether it was one.
    pub(super) fn on_joining_message(&mut self, from: WorkerId, message: &ToBoss) -> bool {
        match message {
            ToBoss::Done { id, .. } => {
                if self.preparing.get(&from).is_some_and(|preparing| preparing.last == *id) {
                    if let Some(Preparing { request, .. }) = self.preparing.remove(&from) {
                        self.reply(request, Answer::Instruct(()));
                    }
                }
                self.answered_by(from, *id);
            }
            ToBoss::Failed { failure, .. } => {
                let failure = failure.clone().bounded();
                match self.preparing.remove(&from) {
                    Some(Preparing { request, .. }) => {
                        let result = Err(failure.on(from));
                        self.outbox.push(BossEffect::Reply { request, result });
                    }
                    None => {
                        self.dismiss(from, &format!("it could not follow: {}", failure.message));
                    }
                }
            }
            ToBoss::Aborted { id, .. } => self.answered_by(from, *id),
            ToBoss::Measured { .. } | ToBoss::Health { .. } => {}
            _ => return false,
        }
        true
    }

    fn answered_by(&mut self, follower: WorkerId, id: u64) {
        let Some(following) = self.followers.get_mut(&follower) else { return };
        following.unanswered.remove(&id);
        if following.unanswered.is_empty() {
            following.doubtful = false;
            self.awaited_followers.remove(&follower);
            // One is enough to take a stage over.
            let replica = following.replica;
            if self.hands_over(replica) {
                let follows = |other: &WorkerId| {
                    self.followers.get(other).is_some_and(|other| other.replica == replica)
                };
                self.awaited_followers.retain(|other| !follows(other));
            }
        }
    }

    /// Closes the connection to a worker, which may join again. The driver then reports it lost.
    fn dismiss(&mut self, worker: WorkerId, reason: &str) {
        self.outbox.push(BossEffect::Dismiss { worker, reason: reason.into() });
    }

    /// A worker is told to leave.
    pub(super) fn on_leaving(&mut self, worker: WorkerId) {
        if self.leaving.insert(worker) && self.admits_workers {
            self.outbox.push(BossEffect::Leaving(worker));
        }
    }

    /// Lets workers go that leave. Between two requests nobody waits for anything of theirs but
    /// state that still travels, with which they stay.
    pub(super) fn release_leaving(&mut self, now: Micros) {
        if self.job.is_some() {
            return;
        }
        let sends = |worker: WorkerId| {
            let gives =
                |follower: &Follower| follower.state_sender == worker && !follower.has_state();
            self.background.values().any(|(_, collector)| collector.misses(worker))
                || self.followers.values().any(gives)
        };
        let stays = |worker: &WorkerId| sends(*worker) || self.hands_over(*worker);
        let go: Vec<WorkerId> = self.leaving.iter().copied().filter(|one| !stays(one)).collect();
        for worker in go {
            // The loss of the one before may have released it.
            if !self.leaving.remove(&worker) {
                continue;
            }
            let reason = "it was told to leave";
            self.dismiss(worker, reason);
            // At once, so that the next request does not count on it.
            self.on_lost(now, worker, reason);
        }
    }

    /// Whether all leave that have some stage of a pool, and this worker is the first of them. It
    /// stays until another one has the stage. Its own limit of time ends the wait.
    fn hands_over(&self, worker: WorkerId) -> bool {
        let placement = &self.setup.plan.stage_placement;
        let is_needed = |stage: StageId| {
            let mut workers = placement.of(stage).iter().filter(|other| self.alive(**other));
            workers.clone().all(|other| self.leaving.contains(other))
                && workers.next() == Some(&worker)
        };
        self.admits_workers && placement.stages_of(worker).any(is_needed)
    }

    /// Handles the loss of a worker that was in preparation, followed, or sent its state to such a
    /// worker.
    pub(super) fn on_joining_lost(&mut self, worker: WorkerId, reason: &str) {
        if let Some(Preparing { request, .. }) = self.preparing.remove(&worker) {
            let result = Err(self.lost_failure(worker, reason));
            self.outbox.push(BossEffect::Reply { request, result });
        }
        self.followers.remove(&worker);
        self.awaited_followers.remove(&worker);
        // A follower receives frames from workers of its stages only.
        let placement = &self.setup.plan.stage_placement;
        for (follower, following) in &mut self.followers {
            let mut stages = placement.stages_of(following.replica);
            if stages.any(|stage| placement.has(stage, worker)) {
                self.awaited_followers.remove(follower);
                following.doubtful |= !following.unanswered.is_empty();
            }
        }
        let waits = |(follower, of): (&WorkerId, &Follower)| {
            (of.state_sender == worker && !of.has_state()).then_some(*follower)
        };
        let waiting: Vec<WorkerId> = self.followers.iter().filter_map(waits).collect();
        for follower in waiting {
            self.followers.remove(&follower);
            self.awaited_followers.remove(&follower);
            self.dismiss(follower, "waits for the state of a worker that has left; join again");
        }
    }

    /// Whether the current round succeeds without a lost worker, because all others have the data
    /// for their update.
    pub(super) fn continues_without(&mut self, worker: WorkerId) -> bool {
        match &mut self.job {
            Some(Job { phase: Phase::Collecting(collector), .. })
                if self.admits_workers && collector.is_committed() =>
            {
                collector.forget(worker);
                true
            }
            _ => false,
        }
    }

    /// Handles a broken link between two workers, in a run that workers may leave.
    pub(super) fn link_broke(&mut self, from: WorkerId, peer: WorkerId, reason: &str) {
        let takes_part =
            self.setup.plan.stage_placement.is_member(from) || self.followers.contains_key(&from);
        if !self.alive(peer) || !takes_part {
            return;
        }
        // A follower can start again. The data that it missed is lost.
        if let Some(follower) =
            [from, peer].into_iter().find(|worker| self.followers.contains_key(worker))
        {
            self.followers.remove(&follower);
            self.awaited_followers.remove(&follower);
            return self.dismiss(follower, "lost its link to another worker; join again");
        }
        let stage_placement = &self.setup.plan.stage_placement;
        let committed =
            matches!(&self.job, Some(Job { phase: Phase::Collecting(g), .. }) if g.is_committed());
        if stage_placement.is_member(from) && stage_placement.is_member(peer) {
            let failure = Failure::lost(format!("its direct link to {peer} broke ({reason})"));
            let failure = failure.on(from);
            // Both ends send through the boss from now on, which does not expect that.
            self.broken_link = Some(failure.clone());
            if !committed {
                self.fail(failure);
            }
        }
    }

    /// The frames of a change of membership.
    pub(super) fn change_membership(
        &mut self,
        id: u64,
        membership_change: &MembershipChange,
    ) -> Vec<BossEffect> {
        let MembershipChange { plan, followers } = membership_change;
        self.setup.plan = plan.clone();
        self.broken_link = None;
        let all =
            Plan { stage_placement: plan.stage_placement.joined_by(followers), ..plan.clone() };
        let new: BTreeSet<WorkerId> = followers
            .keys()
            .copied()
            .filter(|worker| !self.followers.contains_key(worker))
            .collect();
        let of_stages: Vec<(StageId, WorkerId)> = followers
            .keys()
            .flat_map(|follower| {
                all.stage_placement.stages_of(*follower).map(|stage| (stage, *follower))
            })
            .collect();
        let change_membership = |worker: WorkerId| {
            // Two followers exchange nothing, and one may be busy for a long time.
            let follows = |worker: &WorkerId| followers.contains_key(worker);
            let peers = all
                .peers_of(worker)
                .into_iter()
                .filter(|peer| !(follows(&worker) && follows(peer)));
            let peers = peers.map(|peer| PeerAddress {
                worker: peer,
                address: self.setup.address(worker).and(self.setup.address(peer)),
                // A follower may be busy for a long time. The other worker dials, so it does not
                // wait for the follower.
                dial: follows(&peer) || (worker < peer && !follows(&worker)),
                relayed: self.links.is_relayed(worker, peer),
            });
            let given = followers
                .iter()
                .filter(|(follower, replica)| **replica == worker && new.contains(follower));
            ChangeMembership {
                stage_placement: plan.stage_placement.clone(),
                followers: of_stages.clone(),
                peers: peers.collect(),
                give: given.map(|(follower, _)| *follower).collect(),
                take: followers.get(&worker).copied().filter(|_| new.contains(&worker)),
            }
        };
        let told = plan.stage_placement.members().into_iter().chain(followers.keys().copied());
        let to = told.map(|worker| {
            command(worker, id, Command::ChangeMembership(Box::new(change_membership(worker))))
        });
        let sends = vec![BossEffect::Tell(to.collect())];
        self.followers.retain(|worker, _| followers.contains_key(worker));
        for (worker, replica) in followers {
            let unanswered = BTreeSet::new();
            let fresh = || Follower {
                replica: *replica,
                state_sender: *replica,
                started_with: id,
                unanswered,
                doubtful: false,
            };
            let follower = self.followers.entry(*worker).or_insert_with(fresh);
            follower.replica = *replica;
            follower.unanswered.insert(id);
        }
        sends
    }

    /// The part of a request that followers receive: the end of a training round.
    pub(super) fn for_followers(&mut self, id: u64, request: &Request) -> Vec<BossEffect> {
        let body = |replica: WorkerId| match request {
            Request::Run(run) => end_of(run, replica).map(|round| Command::Run(Box::new(round))),
            Request::Instruct(Instruction::SetOptimizer(optimizer)) => {
                Some(Command::SetOptimizer(*optimizer))
            }
            _ => None,
        };
        let mut to = Vec::new();
        let handed_over: Vec<WorkerId> =
            self.leaving.iter().copied().filter(|worker| self.hands_over(*worker)).collect();
        for (worker, follower) in &mut self.followers {
            if let Some(body) = body(follower.replica) {
                // A follower at most one command behind joins this round, so it has caught up when
                // the round ends. If its stage would be lost, the round waits for it in any case.
                let nearly = follower.unanswered.len() <= 1 && follower.has_state();
                let joins = nearly || handed_over.contains(&follower.replica);
                if joins && !follower.doubtful {
                    self.awaited_followers.insert(*worker);
                }
                follower.unanswered.insert(id);
                to.push(command(*worker, id, body));
            }
        }
        if to.is_empty() {
            return Vec::new();
        }
        vec![BossEffect::Tell(to)]
    }

    /// The number of commands that each follower has still to run.
    pub fn behind(&self) -> Vec<(WorkerId, usize)> {
        self.followers
            .iter()
            .map(|(worker, follower)| (*worker, follower.unanswered.len()))
            .collect()
    }

    /// Tells all connected workers that the run ended.
    pub(super) fn stop(&mut self) -> Vec<BossEffect> {
        self.stopping = true;
        let all = (0..self.setup.addresses.len() as u16)
            .map(WorkerId)
            .filter(|worker| self.alive(*worker));
        let to = all.map(|to| Message { to, body: ToWorker::Stop });
        vec![BossEffect::Tell(to.collect())]
    }

    pub(super) fn lost_failure(&self, worker: WorkerId, reason: &str) -> Failure {
        let message = match self.admits_workers {
            true => format!("it has left ({reason})"),
            false => format!("lost ({reason}), and its layers and their state with it"),
        };
        Failure::lost(message).on(worker)
    }
}

/// The part of a round that needs no microbatches: sums arrive and parameters are updated. `None`
/// if the round does not train.
fn end_of(run: &RunRequest, replica: WorkerId) -> Option<crate::message::Round> {
    let mut round = round(run, replica, false);
    round
        .actions
        .retain(|action| matches!(action, Action::Reduce { .. } | Action::OptimStep { .. }));
    (round.loss, round.outputs) = (None, RoundOutputs::None);
    (!round.actions.is_empty()).then_some(round)
}
