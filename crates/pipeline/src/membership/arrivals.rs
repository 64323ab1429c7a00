//! The arrival of a worker, its preparation during the steps of the others, and its end.

use super::{Decision, Member, MemberState, Membership, Notice, Process};
use crate::ids::{StageId, WorkerId};
use crate::message::Failure;

/// The number of updates after which an evicted worker is tried again.
const READMIT_AFTER_UPDATES: u64 = 200;

impl Membership {
    /// A worker joined. A process that was disconnected before waits first.
    pub fn on_joined(&mut self, worker: WorkerId, process: Process) {
        let removed = self.removed.remove(&process);
        self.members.insert(worker, Member { process, ..Member::default() });
        if let Some(reason) = removed {
            self.evict(worker, format!("it was here before: {reason}"));
        }
    }

    /// A worker is told to leave. It stays for a while if it is the last of a stage.
    pub fn on_leaving(&mut self, worker: WorkerId) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.is_leaving = true;
        let nobody_stays = |stage| self.staying(self.placement.of(stage)).is_empty();
        if self.placement.stages_of(worker).any(nobody_stays) {
            self.notice(Notice::Leaving { worker });
        }
    }

    /// A worker left, for this reason.
    pub fn on_left(&mut self, worker: WorkerId, reason: &str) {
        if self.state(worker).is_some_and(|state| !state.has_left()) {
            self.leave(worker, reason);
            self.notice(Notice::Left { worker, why: reason.into() });
        }
    }

    /// The preparation of a worker ended.
    pub fn on_prepared(&mut self, worker: WorkerId, result: Result<(), Failure>) {
        let Some(state) = self.state(worker).filter(|state| !state.has_left()) else { return };
        match (result, state) {
            (Ok(()), MemberState::Preparing(stage)) => {
                self.set_state(worker, MemberState::Ready(*stage));
            }
            (Ok(()), _) => {}
            (Err(failure), _) => {
                self.notice(Notice::Unprepared { worker, why: failure.to_string() });
                self.disconnect(worker, &failure.message);
                self.on_left(worker, &failure.message);
            }
        }
    }

    /// A worker that is to be prepared does not fit beside the workers of its stages. Returns
    /// whether the next update tries other stages. If not, its preparation has failed.
    pub fn on_unfit(&mut self, worker: WorkerId) -> bool {
        let Some(member) = self.members.get_mut(&worker) else { return false };
        let MemberState::Preparing(stage) = member.state else { return false };
        member.unfit.insert(stage);
        let has_other = self.smallest_stage(worker).is_some();
        if has_other {
            self.set_state(worker, MemberState::Joined);
        }
        has_other
    }

    /// Begins to prepare the workers that have joined.
    pub(super) fn prepare_joined(&mut self) {
        let joined = self.members().filter(|(_, member)| member.state == MemberState::Joined);
        for worker in joined.map(|(worker, _)| worker).collect::<Vec<_>>() {
            let Some(stage) = self.smallest_stage(worker) else { continue };
            let Some(like) = self.placement.first(stage) else { continue };
            let placement = self.placement.joined_by([(&worker, &like)]);
            self.set_state(worker, MemberState::Preparing(stage));
            self.decide(Decision::Prepare { worker, placement });
        }
    }

    /// The first stage of the place that has the fewest workers, among those for which this worker
    /// was not found unfit. Workers on their way there count, and those that leave do not.
    fn smallest_stage(&self, worker: WorkerId) -> Option<StageId> {
        let on_their_way = |stage: StageId| {
            let goes_there = |member: &&Member| match member.state {
                MemberState::Preparing(place) | MemberState::Ready(place) => {
                    self.placement.of(place) == self.placement.of(stage)
                }
                MemberState::CatchingUp(guide) => self.placement.has(stage, guide),
                _ => false,
            };
            self.members.values().filter(goes_there).count()
        };
        let unfit = self.members.get(&worker).map(|member| &member.unfit);
        let is_unfit = |workers: &[WorkerId]| {
            unfit.is_some_and(|unfit| unfit.iter().any(|one| self.placement.of(*one) == workers))
        };
        let places =
            self.placement.iter().filter(|(_, workers)| !workers.is_empty() && !is_unfit(workers));
        places
            .min_by_key(|(stage, workers)| self.staying(workers).len() + on_their_way(*stage))
            .map(|(stage, _)| stage)
    }

    /// Disconnects a worker, and remembers its process.
    pub(super) fn disconnect(&mut self, worker: WorkerId, reason: &str) {
        if let Some(member) = self.members.get(&worker) {
            self.removed.insert(member.process.clone(), reason.to_string());
        }
        self.decide(Decision::Disconnect { worker, reason: reason.to_string() });
    }

    pub(super) fn leave(&mut self, worker: WorkerId, reason: &str) {
        self.commands_behind.remove(&worker);
        if let Some(member) = self.members.get_mut(&worker) {
            member.retire(MemberState::Left { reason: reason.to_string() });
        }
    }

    pub(super) fn evict(&mut self, worker: WorkerId, reason: String) {
        self.notice(Notice::Evicted { worker, why: reason.clone() });
        let until = self.position.updates + READMIT_AFTER_UPDATES;
        if let Some(member) = self.members.get_mut(&worker) {
            member.retire(MemberState::Evicted { reason, until });
        }
    }

    /// Those of these workers that are not told to leave.
    pub(super) fn staying(&self, workers: &[WorkerId]) -> Vec<WorkerId> {
        let stays = |worker| self.members.get(worker).is_none_or(|member| !member.is_leaving);
        workers.iter().filter(|worker| stays(*worker)).copied().collect()
    }

    /// Tries the workers again that were evicted long ago, and all of them if everybody leaves who
    /// has some stage.
    pub(super) fn readmit_evicted(&mut self) {
        let now = self.position.updates;
        let needs_all = self.placement.iter().any(|(_, workers)| self.staying(workers).is_empty());
        for (worker, member) in &mut self.members {
            let MemberState::Evicted { until, .. } = member.state else { continue };
            if needs_all || until <= now {
                member.state = MemberState::Joined;
                self.decisions.push_back(Decision::ForgetTimes(*worker));
            }
        }
    }
}
