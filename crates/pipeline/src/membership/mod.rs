//! The members of a pool, as a state machine: joins and leaves, evictions, and the recovery of
//! steps.
//!
//! ```text
//!  on_joined     update         on_prepared  on_changed     on_changed
//!     |            |                 |           |              |
//!     +-> Joined --+--> Preparing ---+-> Ready --+-> CatchingUp-+-> Active
//!           ^                                                         |
//!           +--- Evicted (for 200 updates) <--- straggler ------------+
//!                (less if all leave who have some stage)
//!
//!  any state -- on_left, on_failure --> Left
//! ```
//!
//! The owner calls `on_*` when something happened, and carries out every [`Decision`] that
//! [`Membership::poll_decision`] returns. Between two steps it calls [`Membership::update`]
//! (`update`), tells the workers the [`Change`], and reports the result.

mod arrivals;
mod decision;
mod member;
mod step;
mod straggler;
#[cfg(test)]
mod tests;
mod update;

pub use decision::{Change, Decision, Notice};
pub use member::{Member, MemberState, Process};
pub use step::{Position, StepDone};
pub use straggler::{LinkRate, StepTimes};

use crate::ids::WorkerId;
use crate::message::Failure;
use crate::recovery::{Cause, RecoveryPolicy, Remedy, Situation};
use crate::replicas::StagePlacement;
use std::collections::{BTreeMap, VecDeque};
use straggler::Links;

/// The most commands that a follower may be behind. With more, the state changes faster than the
/// follower receives it.
const MAX_COMMANDS_BEHIND: usize = 12;

/// The members of a pool, and what they do next.
#[derive(Default)]
pub struct Membership {
    /// The workers of each stage, as the workers know them.
    placement: StagePlacement,
    members: BTreeMap<WorkerId, Member>,
    /// The number of commands that each follower has still to run.
    commands_behind: BTreeMap<WorkerId, usize>,
    /// Processes that were disconnected, with the reason: the same may join again.
    removed: BTreeMap<Process, String>,
    links: Links,
    /// Whether the next update tells the workers their members even if these are the same.
    must_confirm: bool,
    /// Bounds the failures of a step.
    policy: RecoveryPolicy,
    position: Position,
    decisions: VecDeque<Decision>,
}

impl Membership {
    /// A pool whose first workers have these stages.
    pub fn new(placement: StagePlacement, workers: BTreeMap<WorkerId, Process>) -> Self {
        let active = |process| Member { process, state: MemberState::Active, ..Member::default() };
        let members = workers.into_iter().map(|(worker, process)| (worker, active(process)));
        Membership { placement, members: members.collect(), ..Membership::default() }
    }

    /// The next thing to do, if any.
    pub fn poll_decision(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// The workers of each stage, as the workers know them.
    pub fn placement(&self) -> &StagePlacement {
        &self.placement
    }

    /// All workers that ever joined, ascending.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (WorkerId, &Member)> {
        self.members.iter().map(|(worker, member)| (*worker, member))
    }

    /// Sets the position of the run. Calls by hand may move it between steps.
    pub fn set_position(&mut self, position: Position) {
        self.position = position;
    }

    /// Sets the known rates of links between workers.
    pub fn set_links(&mut self, rates: Vec<LinkRate>) {
        self.links = Links::new(rates);
    }

    /// Records a completed step, and disconnects followers that are too far behind.
    pub fn on_step(&mut self, done: StepDone<'_>) {
        self.policy.completed(done.step);
        for worker in self.placement.members() {
            let Some(member) = self.members.get_mut(&worker) else { continue };
            let taken = done.taken(&self.placement, worker);
            member.steps += 1;
            member.steps_since_active += 1;
            member.samples += taken.iter().map(|microbatch| done.samples(microbatch)).sum::<u64>();
            member.share = taken.len() as f64 / f64::from(done.microbatches.max(1));
            member.bytes_per_second = self.links.slowest(&self.placement, worker);
        }
        let is_too_far = |(_, behind): &(&WorkerId, &usize)| **behind > MAX_COMMANDS_BEHIND;
        let too_far: Vec<_> = done.behind.iter().filter(is_too_far).map(|(w, _)| *w).collect();
        for worker in too_far {
            let reason =
                "its line or its processor is too slow: it fell further behind while it caught up";
            self.disconnect(worker, reason);
        }
        self.commands_behind = done.behind;
    }

    /// A step or a change of members failed. Decides whether to repeat it, and removes a member
    /// that fails where others do not. The next update tells the workers their members again.
    pub fn on_failure(&mut self, failure: &Failure) -> Remedy {
        self.must_confirm = true;
        let situation = Situation::Pool {
            members: self.placement.members().len(),
            others_can_go_on: failure.worker.is_some_and(|worker| self.can_go_on_without(worker)),
        };
        let remedy = self.policy.decide(Cause::of(failure), failure.worker, situation);
        if let Remedy::RepeatWithout(worker) = remedy {
            self.notice(Notice::Removed { worker, why: failure.to_string() });
            self.disconnect(worker, &format!("it failed: {}", failure.message));
            self.leave(worker, "it failed");
        }
        remedy
    }

    /// Whether a worker takes part, and for each of its stages another one does.
    fn can_go_on_without(&self, worker: WorkerId) -> bool {
        let is_active = |worker| self.state(worker) == Some(&MemberState::Active);
        let other = |stage| {
            self.placement.of(stage).iter().any(|other| *other != worker && is_active(*other))
        };
        is_active(worker) && self.placement.stages_of(worker).all(other)
    }

    fn state(&self, worker: WorkerId) -> Option<&MemberState> {
        self.members.get(&worker).map(|member| &member.state)
    }

    fn set_state(&mut self, worker: WorkerId, state: MemberState) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.state = state;
        }
    }

    fn decide(&mut self, decision: Decision) {
        self.decisions.push_back(decision);
    }

    fn notice(&mut self, notice: Notice) {
        self.decide(Decision::Notice(notice));
    }
}
