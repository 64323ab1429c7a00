//! The assignment of microbatches to replicas, by the speed observed last.

use super::measured_fleet::MeasuredFleet;
use super::schedule_state::{ScheduleContext, ScheduleState};
use pipeline::ids::{StageId, WorkerId};
use pipeline::replicas::{MicrobatchAssignment, Speed};
use pipeline::Plan;

/// Microbatches are assigned anew if the slowest worker then takes less than this part of its time.
/// Smaller gains are within the variation from step to step.
const REASSIGN_BELOW: f64 = 0.95;

impl ScheduleState {
    /// The assignment of the next batch. `None` if no stage has replicas. `now` is the current one,
    /// which stays unless another one is clearly faster.
    pub(crate) fn microbatch_assignment(
        &self,
        context: &ScheduleContext<'_>,
        microbatches: u32,
        now: Option<&MicrobatchAssignment>,
    ) -> Option<MicrobatchAssignment> {
        let plan = context.plan;
        let stage_placement = &plan.stage_placement;
        if !stage_placement.is_replicated() {
            return None;
        }
        if context.settings.even_assignment {
            return Some(plan.ordered(MicrobatchAssignment::even(stage_placement, microbatches)));
        }
        let speed = |stage: StageId, worker: WorkerId| Speed {
            each: self.microbatch_time(plan, stage, worker),
            once: self.observed.per_step_time(stage, worker),
        };
        let best =
            plan.ordered(MicrobatchAssignment::by_speed(stage_placement, microbatches, speed));
        let longest = |microbatch_assignment: &MicrobatchAssignment| {
            microbatch_assignment.longest(stage_placement, microbatches, speed) as f64
        };
        match now {
            Some(now) if longest(&best) >= longest(now) * REASSIGN_BELOW => Some(now.clone()),
            _ => Some(best),
        }
    }

    /// The time of a microbatch forward and backward through a stage on a worker, in nanoseconds:
    /// as observed, else as measured, else as that of the slowest other replica.
    pub(crate) fn microbatch_time(&self, plan: &Plan, stage: StageId, worker: WorkerId) -> u64 {
        let measured = || {
            let MeasuredFleet { fleet, .. } =
                self.measured.as_ref().filter(|m| !m.fleet.times.is_empty())?;
            Some(fleet.microbatch(plan, stage, worker))
        };
        let others = || {
            let others = plan.stage_placement.of(stage).iter();
            others.filter_map(|other| self.observed.microbatch_time(stage, *other)).max()
        };
        self.observed
            .microbatch_time(stage, worker)
            .or_else(measured)
            .or_else(others)
            .unwrap_or(1)
            .max(1)
    }
}
