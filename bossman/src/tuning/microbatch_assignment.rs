//! The assignment of microbatches to replicas: replicas by their speed, as it was observed last.

use crate::session::boss::BossMan;
use crate::tuning::schedule_state::MeasuredFleet;
use pipeline::ids::{StageId, WorkerId};
use pipeline::replicas::{MicrobatchAssignment, Speed};

/// Microbatches are assigned again where that makes the slowest worker so much faster: less is within what is observed from
/// step to step.
const REASSIGN_BELOW: f64 = 0.95;

impl BossMan {
    /// How the next batch is assigned; nothing where no stage has replicas.
    pub(crate) fn microbatch_assignment(
        &self,
        microbatches: u32,
        now: Option<&MicrobatchAssignment>,
    ) -> Option<MicrobatchAssignment> {
        let stage_placement = &self.plan.stage_placement;
        if !stage_placement.is_replicated() {
            return None;
        }
        if self.settings.even_assignment {
            return Some(self.plan.ordered(MicrobatchAssignment::even(stage_placement, microbatches)));
        }
        let speed = |stage: StageId, worker: WorkerId| Speed {
            each: self.microbatch_time(stage, worker),
            once: self.scheduling.observed.per_step_time(stage, worker),
        };
        let best = self.plan.ordered(MicrobatchAssignment::by_speed(stage_placement, microbatches, speed));
        let longest = |microbatch_assignment: &MicrobatchAssignment| {
            microbatch_assignment.longest(stage_placement, microbatches, speed) as f64
        };
        match now {
            Some(now) if longest(&best) >= longest(now) * REASSIGN_BELOW => Some(now.clone()),
            _ => Some(best),
        }
    }

    /// The time of a microbatch forward and backward through a stage on a worker, in nanoseconds:
    /// as observed, else as measured, else as long as any other.
    pub(crate) fn microbatch_time(&self, stage: StageId, worker: WorkerId) -> u64 {
        let measured = || {
            let MeasuredFleet { fleet, .. } =
                self.scheduling.measured.as_ref().filter(|m| !m.fleet.times.is_empty())?;
            Some(fleet.microbatch(&self.plan, stage, worker))
        };
        let others = || {
            let others = self.plan.stage_placement.of(stage).iter();
            others.filter_map(|other| self.scheduling.observed.microbatch_time(stage, *other)).max()
        };
        self.scheduling.observed.microbatch_time(stage, worker).or_else(measured).or_else(others).unwrap_or(1).max(1)
    }
}
