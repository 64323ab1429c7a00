//! Who takes how many microbatches: replicas by their speed, as it was observed last.

use crate::boss::BossMan;
use crate::scheduling::Measured;
use pipeline::ids::{StageId, WorkerId};
use pipeline::replicas::{Deal, Pace};

/// Microbatches are dealt again where that makes the slowest worker so much faster: less is within what is observed from
/// step to step.
const WORTH_IT: f64 = 0.95;

impl BossMan {
    /// How the next batch is dealt; nothing where no stage has replicas.
    pub(crate) fn deal(&self, microbatches: u32, now: Option<&Deal>) -> Option<Deal> {
        let homes = &self.plan.homes;
        if !homes.is_replicated() {
            return None;
        }
        if self.settings.even {
            return Some(self.plan.ordered(Deal::even(homes, microbatches)));
        }
        let pace = |stage: StageId, worker: WorkerId| Pace {
            each: self.time(stage, worker),
            once: self.scheduling.observed.once(stage, worker),
        };
        let best = self.plan.ordered(Deal::by_speed(homes, microbatches, pace));
        let longest = |deal: &Deal| deal.longest(homes, microbatches, pace) as f64;
        match now {
            Some(now) if longest(&best) >= longest(now) * WORTH_IT => Some(now.clone()),
            _ => Some(best),
        }
    }

    /// What a worker takes for a microbatch through a stage and back, in nanoseconds: as observed, else as measured, else
    /// as long as any other.
    pub(crate) fn time(&self, stage: StageId, worker: WorkerId) -> u64 {
        let measured = || {
            let Measured { fleet, .. } = self.scheduling.measured.as_ref().filter(|m| !m.fleet.times.is_empty())?;
            Some(fleet.microbatch(&self.plan, stage, worker))
        };
        let others = || {
            let others = self.plan.homes.of(stage).iter();
            others.filter_map(|other| self.scheduling.observed.microbatch(stage, *other)).max()
        };
        self.scheduling.observed.microbatch(stage, worker).or_else(measured).or_else(others).unwrap_or(1).max(1)
    }
}
