//! The members of the next step: the workers that remain, and the followers that caught up.

use super::{Change, Member, MemberState, Membership, Notice, StepTimes};
use crate::ids::WorkerId;
use crate::message::Failure;
use crate::replicas::StagePlacement;
use std::collections::{BTreeMap, BTreeSet};

/// The number of steps after which a worker is judged.
const MIN_STEPS_TO_JUDGE: u64 = 5;

impl Membership {
    /// Prepares new workers, evicts a straggler, and returns the change of members before the next
    /// step. `None` if the members stay the same.
    ///
    /// # Errors
    /// Some stage has lost its last worker.
    pub fn update(&mut self, times: &StepTimes<'_>) -> Result<Option<Change>, Failure> {
        self.readmit_evicted();
        self.prepare_joined();
        self.evict_straggler(times);
        let remaining = self.remaining()?;
        let change = self.change(remaining);
        let follow =
            |(_, member): &(_, &Member)| matches!(member.state, MemberState::CatchingUp(_));
        let followers = self.members().filter(follow).map(|(worker, _)| worker);
        let is_same =
            change.placement == self.placement && followers.eq(change.followers.keys().copied());
        Ok((!is_same || self.must_confirm).then_some(change))
    }

    /// Evicts the worker that slows the others down most, if any. While a worker leaves, the others
    /// are needed.
    fn evict_straggler(&mut self, times: &StepTimes<'_>) {
        let is_judged = |member: &Member| {
            member.state == MemberState::Active
                && member.steps_since_active >= MIN_STEPS_TO_JUDGE
                && !member.is_leaving
        };
        let mut members = self.placement.members().into_iter();
        if !members.all(|worker| self.members.get(&worker).is_some_and(is_judged)) {
            return;
        }
        if let Some((worker, reason)) = times.straggler(&self.placement, &self.links) {
            self.evict(worker, reason);
        }
    }

    /// The workers accepted a change. Followers have this number of commands still to run.
    pub fn on_changed(&mut self, change: Change, behind: BTreeMap<WorkerId, usize>) {
        self.adopt(change);
        self.commands_behind = behind;
        self.must_confirm = false;
    }

    /// The workers did not all accept a change, and [`Membership::on_failure`] decided to repeat.
    /// A worker that has caught up has the state, even if the others do not know.
    pub fn on_change_failed(&mut self, mut change: Change) {
        let follows = |worker| matches!(self.state(worker), Some(MemberState::CatchingUp(_)));
        change.followers.retain(|worker, _| follows(*worker));
        self.adopt(change);
    }

    fn adopt(&mut self, Change { placement, followers }: Change) {
        for (worker, member) in &mut self.members {
            let has = placement.is_member(*worker);
            match (&member.state, has, followers.get(worker)) {
                (MemberState::Active | MemberState::Left { .. }, true, _) => {}
                (_, true, _) => {
                    member.steps_since_active = 0;
                    member.state = MemberState::Active;
                }
                (MemberState::Ready(_) | MemberState::CatchingUp(_), _, Some(guide)) => {
                    member.state = MemberState::CatchingUp(*guide);
                }
                _ => {}
            }
        }
        let workers = placement.members().len();
        if workers != self.placement.members().len() {
            self.notice(Notice::Members { step: self.position.step + 1, workers });
        }
        self.placement = placement;
    }

    /// The placement without the workers that no longer take part.
    fn remaining(&self) -> Result<StagePlacement, Failure> {
        let inactive = self.members().filter(|(_, member)| member.state != MemberState::Active);
        let inactive: BTreeSet<WorkerId> = inactive.map(|(worker, _)| worker).collect();
        let remaining = self.placement.of_those(|worker| !inactive.contains(&worker));
        let orphan = remaining.iter().find(|(_, workers)| workers.is_empty());
        if let Some((stage, _)) = orphan {
            return Err(Failure::lost(format!(
                "everybody has left who had {stage}, and its weights are gone with them"
            )));
        }
        Ok(remaining)
    }

    fn change(&self, mut placement: StagePlacement) -> Change {
        let mut followers = BTreeMap::new();
        for (worker, member) in &self.members {
            match member.state {
                MemberState::CatchingUp(guide) => {
                    let guide = self.remaining_replica(&placement, guide);
                    let has_caught_up = self.commands_behind.get(worker) == Some(&0);
                    match guide {
                        Some(guide) if has_caught_up => {
                            placement = placement.joined_by([(worker, &guide)]);
                        }
                        Some(guide) => drop(followers.insert(*worker, guide)),
                        None => {}
                    }
                }
                MemberState::Ready(stage) => {
                    // Workers take turns to send their state, if possible those that stay.
                    let all = placement.of(stage);
                    let staying = self.staying(all);
                    let guides = if staying.is_empty() { all } else { &staying };
                    let turn = followers.len() % guides.len().max(1);
                    followers.extend(guides.get(turn).map(|guide| (*worker, *guide)));
                }
                _ => {}
            }
        }
        Change { placement, followers }
    }

    /// This guide if it remains, or else another worker with its stages.
    fn remaining_replica(&self, placement: &StagePlacement, guide: WorkerId) -> Option<WorkerId> {
        match placement.is_member(guide) {
            true => Some(guide),
            false => placement.first(self.placement.stages_of(guide).next()?),
        }
    }
}
