//! Chooses the schedule: the requested one, or the fastest of those predicted from the workers'
//! measurements. Everything here is pure; the trainer measures and moves stages.

use super::batch_shape::{BatchShape, MicrobatchSizes};
use super::measured_fleet::MeasuredFleet;
use super::schedule_state::{ScheduleContext, ScheduleState};
use crate::BossManError;
use layerspec::human;
use pipeline::auto::{choose, Choice, SearchSpace};
use pipeline::ids::StageId;
use pipeline::schedule::{Ending, ScheduleError};
use pipeline::{Cuts, Plan, ScheduleKind};

/// The measurement that the next step needs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Measurement {
    Nothing,
    /// Only links: the times of layers are observed in steps, for the timelines.
    Links,
    /// Layers and links, to choose a schedule.
    Layers,
}

/// The chosen schedule.
pub(crate) struct Decision {
    pub(crate) kind: ScheduleKind,
    /// The plan to move to. `None`: stages stay.
    pub(crate) plan: Option<Plan>,
    /// The reason.
    pub(crate) why: String,
}

impl ScheduleState {
    /// The measurement that the next step needs.
    pub(crate) fn required_measurement(&self, context: &ScheduleContext<'_>) -> Measurement {
        let is_open = context.requested.is_none() || context.settings.chooses_replicas();
        match (is_open, self.chosen.is_some(), self.measured.is_some()) {
            (true, false, _) => Measurement::Layers,
            (false, _, false) => Measurement::Links,
            _ => Measurement::Nothing,
        }
    }

    /// Chooses the schedule for steps of this shape that end with `ending`. Once anything was
    /// trained or loaded (`is_settled`), stages do not move, because parameters would be lost.
    ///
    /// # Errors
    /// No schedule fits the workers' memory, or the workers can no longer be grouped.
    pub(crate) fn choose(
        &self,
        context: &ScheduleContext<'_>,
        shape: &BatchShape,
        ending: Ending,
        is_settled: bool,
    ) -> Result<Decision, BossManError> {
        if is_settled && context.settings.chooses_replicas() {
            return Err(BossManError::Usage(
                "`replicas: auto` groups the workers before anything is trained or loaded; give \
                 `replicas` a number"
                    .into(),
            ));
        }
        let plan = context.plan;
        let cuts = if is_settled { current_cuts(plan) } else { context.settings.cuts.clone() };
        let choice = self.predict(context, shape, ending, cuts)?;
        let Some(best) = choice.best(|c| !is_settled || c.plan == *plan) else {
            let mut refused = choice.candidates.into_iter().filter_map(|c| c.refused);
            let why = match refused.next() {
                Some(ScheduleError::Memory(shortage)) => format!(" ({shortage})"),
                _ => String::new(),
            };
            let advice = match context.settings.chooses_replicas() {
                true => "",
                false => "; a `schedule` in the run file is tried as it is",
            };
            return Err(BossManError::NoSchedule(format!(
                "by prediction no schedule fits the workers' memory{why}; use more workers or more \
                 microbatches{advice}"
            )));
        };
        // A move that failed is repeated.
        let moves = best.plan != *plan || self.redistributing;
        let why = format!(
            "predicted fastest of {} schedules, {} a step",
            choice.candidates.len(),
            human::time(best.step_time)
        );
        Ok(Decision { kind: best.kind, plan: moves.then(|| best.plan.clone()), why })
    }

    /// Predicts a step for every schedule. If the schedule and the groups of workers are requested,
    /// the stages are those of the plan, since these run.
    ///
    /// # Errors
    /// The workers were not measured.
    pub(crate) fn predict(
        &self,
        context: &ScheduleContext<'_>,
        shape: &BatchShape,
        ending: Ending,
        cuts: Cuts,
    ) -> Result<Choice, BossManError> {
        let missing =
            || BossManError::Usage("the workers were not measured; please report it".into());
        let MeasuredFleet { fleet, .. } = self.measured.as_ref().ok_or_else(missing)?;
        let MicrobatchSizes { sizes, target_bytes } = shape.microbatch.clone();
        let space = SearchSpace {
            chunks: fixed_chunks(context),
            cuts: if is_fixed(context) { current_cuts(context.plan) } else { cuts },
            microbatches: shape.microbatches,
            sizes,
            target_bytes,
            worker_groups: context.settings.worker_groups(fleet.workers())?,
            ending,
            reduction: context.reduction,
            optimizer: context.optimizer,
            kinds: context.requested.into_iter().collect(),
        };
        Ok(choose(context.graph, fleet, &space)?)
    }
}

/// Whether the plan was made as requested, and no measurement changes it.
fn is_fixed(context: &ScheduleContext<'_>) -> bool {
    context.requested.is_some() && !context.settings.chooses_replicas()
}

/// The number of stages on each worker, if it is not to be chosen.
fn fixed_chunks(context: &ScheduleContext<'_>) -> Option<u16> {
    let stage_placement = &context.plan.stage_placement;
    let first = stage_placement.of(StageId(0));
    let of_first = stage_placement.iter().filter(|(_, workers)| *workers == first).count();
    let in_plan = u16::try_from(of_first).ok();
    let requested = context.settings.chunks.and_then(|chunks| u16::try_from(chunks).ok());
    match context.requested {
        Some(ScheduleKind::GPipe) => in_plan,
        Some(_) if is_fixed(context) => in_plan,
        _ => requested,
    }
}

fn current_cuts(plan: &Plan) -> Cuts {
    let starts = plan.stages.iter().skip(1).filter_map(|stage| stage.layers.first());
    Cuts::At(starts.map(|layer| layer.name.clone()).collect())
}
