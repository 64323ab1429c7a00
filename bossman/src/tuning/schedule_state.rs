//! The state of the choice of a schedule, and the schedules of steps.

use crate::settings::user_settings::ParallelSettings;
use crate::tuning::batch_shape::MicrobatchSizes;
use crate::tuning::known_times::KnownTimes;
use crate::tuning::measured_fleet::MeasuredFleet;
use crate::tuning::observed_times::ObservedTimes;
use crate::BossManError;
use layerspec::{human, LayerGraph};
use pipeline::auto::Choice;
use pipeline::effect::WorkerSpan;
use pipeline::ids::WorkerId;
use pipeline::message::{LinkReport, Reduction};
use pipeline::replicas::MicrobatchAssignment;
use pipeline::schedule::{
    picture, timeline, Costs, Ending, Interval, Order, Schedule, Terms, Timeline,
};
use pipeline::{OptimizerSpec, Plan, ScheduleKind};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Columns of a drawn timeline.
const COLUMNS: u64 = 100;

/// The choice of a schedule, the measurements and the last steps.
#[derive(Default)]
pub(crate) struct ScheduleState {
    pub(crate) chosen: Option<ScheduleKind>,
    /// A plan was chosen whose stages are not yet at the workers.
    pub(crate) redistributing: bool,
    pub(crate) measured: Option<MeasuredFleet>,
    /// The times of layers that sessions of this run measured.
    pub(crate) known_times: KnownTimes,
    /// The times of the last steps.
    pub(crate) observed: ObservedTimes,
    /// Schedules by microbatches and ending.
    pub(crate) cache: BTreeMap<(u32, Ending), Arc<Schedule>>,
    /// Whether the schedules in the cache were made with observed times.
    made_with_observed: bool,
    /// The last complete step.
    pub(crate) last_step: Option<LastStep>,
}

/// The values of a session on which its schedules depend.
pub(crate) struct ScheduleContext<'a> {
    pub(crate) graph: &'a LayerGraph,
    pub(crate) plan: &'a Plan,
    pub(crate) settings: &'a ParallelSettings,
    /// The schedule that was requested or is implied.
    pub(crate) requested: Option<ScheduleKind>,
    pub(crate) reduction: Reduction,
    pub(crate) optimizer: OptimizerSpec,
}

/// A step's timeline as it was and as it was predicted, times in microseconds from its first
/// action.
#[derive(Clone, Debug)]
pub struct Timelines {
    /// The timelines of the workers.
    pub measured: Timeline,
    /// The predicted timeline. `None` if the workers were not measured.
    pub predicted: Option<Timeline>,
}

/// The last step, for its timelines.
pub(crate) struct LastStep {
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) spans: Vec<WorkerSpan>,
}

/// The possible schedules, and the connections. It prints as two tables.
#[derive(Debug)]
pub struct Candidates {
    /// Schedules with their predicted step times, waits and memory.
    pub choice: Choice,
    /// The connections as measured: a worker, and another or the boss.
    pub links: Vec<(WorkerId, Option<WorkerId>, LinkReport)>,
    /// How replicas sum their gradients, and why, if there was a choice.
    pub collective: Option<String>,
}

impl fmt::Display for Candidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.choice.fmt(f)?;
        if let Some(collective) = &self.collective {
            writeln!(f, "{collective}")?;
        }
        for (from, to, report) in &self.links {
            let to = to.map_or_else(|| "the boss".to_string(), |to| to.to_string());
            let trip = human::time(report.rtt.0.saturating_mul(1_000));
            let rate = report.bytes_per_second as f64 / 1e6;
            let way = if report.shared_memory { "shared memory" } else { "quic" };
            writeln!(f, "{from} to {to}: {trip} there and back, {rate:.1} MB/s, {way}")?;
        }
        Ok(())
    }
}

impl Candidates {
    /// The timeline of the best schedule, as a picture.
    pub fn timeline(&self) -> String {
        let Some(best) = self.choice.best(|_| true) else { return String::new() };
        let unit = (best.timeline.end() / COLUMNS).max(1);
        format!(
            "{}, one column for {}\n{}",
            best.kind,
            human::time(unit),
            picture(&best.timeline.in_units(unit))
        )
    }
}

impl ScheduleState {
    /// Records a completed step.
    pub(crate) fn record_step(&mut self, last: LastStep, time: Duration) {
        self.observed.record_step(&last.spans, time);
        self.last_step = Some(last);
    }

    /// The timelines of the last step.
    pub(crate) fn timelines(&self, context: &ScheduleContext<'_>) -> Option<Timelines> {
        let LastStep { schedule, spans } = self.last_step.as_ref()?;
        let begin = spans.iter().map(|span| span.start.0).min()?;
        let mut workers = vec![Vec::new(); context.plan.workers()];
        for span in spans {
            let (start, end) = (span.start.0 - begin, span.end.0.max(span.start.0) - begin);
            if let Some(list) = workers.get_mut(span.worker.0 as usize) {
                list.push(Interval { action: span.action, start, end });
            }
        }
        workers.iter_mut().for_each(|list| list.sort_by_key(|interval| interval.start));
        let mut measured = Timeline { workers, step_time: 0 };
        measured.step_time = measured.end();
        let costs = self.costs(context)?;
        let costs = self.observed.replace_costs(costs, &context.plan.stage_placement);
        let overhead = self.observed.step_overhead();
        let predicted = timeline(schedule, &costs).ok().map(|predicted| {
            let span = predicted.end() - predicted.begin();
            let step_time = overhead.map_or(predicted.step_time, |overhead| span + overhead);
            Timeline { step_time, ..predicted.from_begin() }.in_units(1000)
        });
        Some(Timelines { measured, predicted })
    }

    /// The costs of the current plan, if its workers were measured.
    pub(crate) fn costs(&self, context: &ScheduleContext<'_>) -> Option<Costs> {
        let MeasuredFleet { fleet, microbatch } = self.measured.as_ref()?;
        let MicrobatchSizes { sizes, target_bytes } = microbatch;
        Some(fleet.costs(context.graph, context.plan, sizes, *target_bytes))
    }

    /// Whether observed times take the place of those of layers: for `ready`, if links were
    /// measured and layers were not, as with a named schedule. The number of microbatches in
    /// flight depends on the times of links beside those of stages. After a shortage of memory it
    /// does not grow.
    fn relies_on_observed(&self, context: &ScheduleContext<'_>, kind: ScheduleKind) -> bool {
        let measured_links = self.measured.as_ref().is_some_and(|m| m.fleet.times.is_empty());
        kind == ScheduleKind::Ready
            && measured_links
            && context.settings.shortages == 0
            && self.observed.knows_typical(&context.plan.stage_placement)
    }

    /// The schedule of a step with this ending. The assignment of microbatches follows the
    /// observed times.
    pub(crate) fn schedule_of_step(
        &mut self,
        context: &ScheduleContext<'_>,
        microbatches: u32,
        ending: Ending,
    ) -> Result<Arc<Schedule>, BossManError> {
        let kind = context.requested.or(self.chosen).unwrap_or_default();
        let relies_on_observed = self.relies_on_observed(context, kind);
        if relies_on_observed && !self.made_with_observed {
            self.cache.clear();
        }
        self.made_with_observed = relies_on_observed;
        let cached = self.cache.get(&(microbatches, ending));
        let now = cached.map(|schedule| &schedule.microbatch_assignment);
        let microbatch_assignment = self.microbatch_assignment(context, microbatches, now);
        let is_current = |cached: &&Arc<Schedule>| {
            let same =
                |assignment: &MicrobatchAssignment| *assignment == cached.microbatch_assignment;
            microbatch_assignment.as_ref().is_none_or(same)
        };
        if let Some(cached) = cached.filter(is_current) {
            return Ok(cached.clone());
        }
        let plan = context.plan;
        let mut terms = Terms {
            ending,
            reduction: context.reduction,
            microbatch_assignment,
            ..Terms::new(kind, microbatches)
        };
        match &self.measured {
            Some(MeasuredFleet { fleet, microbatch }) if !fleet.times.is_empty() => {
                let sizes = &microbatch.sizes;
                let bytes = fleet.bytes(context.graph, plan, sizes, &context.optimizer);
                (terms.costs, terms.room) = (self.costs(context), fleet.room(plan, &bytes));
            }
            _ if relies_on_observed => {
                terms.room = twice_in_flight(&plan.schedule_for(&terms)?.order);
                let costs = self.costs(context);
                let placement = &plan.stage_placement;
                terms.costs = costs.map(|costs| self.observed.typical_costs(costs, placement));
            }
            _ => {}
        }
        let schedule = Arc::new(plan.schedule_for(&terms)?);
        self.cache.insert((microbatches, ending), schedule.clone());
        Ok(schedule)
    }
}

/// The most microbatches of each stage in flight while their memory is not known: twice as many as
/// if links were free.
fn twice_in_flight(with_free_links: &Order) -> Option<Vec<u32>> {
    match with_free_links {
        Order::Ready { in_flight, .. } => {
            Some(in_flight.iter().map(|of_stage| of_stage.saturating_mul(2)).collect())
        }
        Order::Listed => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::user_settings::Settings;
    use layerspec::Bindings;
    use pipeline::effect::Micros;
    use pipeline::ids::StageId;
    use pipeline::schedule::{Action, Link};
    use pipeline::{Cuts, Fleet, Placement};

    #[test]
    fn a_named_ready_counts_the_links_once_it_knows_the_times_of_stages() {
        let text = format!(
            "inputs: {{x: [batch, 4]}}\nlayers:\n{}",
            "  - Linear: {in_features: 4, out_features: 4}\n".repeat(4)
        );
        let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
        let plan = Plan::new(&graph, &Cuts::Auto, 4, Placement::Plain).expect("four stages");
        let settings = Settings::default().parallel;
        let context = ScheduleContext {
            graph: &graph,
            plan: &plan,
            settings: &settings,
            requested: Some(ScheduleKind::Ready),
            reduction: Reduction::default(),
            optimizer: OptimizerSpec::adam(0.001),
        };
        let link = Link { latency: 3_000_000, per_byte: 0.0 };
        let microbatch =
            MicrobatchSizes { sizes: Bindings::new().with("batch", 1), target_bytes: None };
        let fleet = Fleet { link, ..Fleet::default() };
        let mut state = ScheduleState {
            measured: Some(MeasuredFleet { fleet, microbatch }),
            ..ScheduleState::default()
        };
        let in_flight = |state: &mut ScheduleState| {
            let schedule = state.schedule_of_step(&context, 16, Ending::Step).expect("it fits");
            match &schedule.order {
                Order::Ready { in_flight, .. } => in_flight.clone(),
                Order::Listed => panic!("`ready` has no list"),
            }
        };
        assert_eq!(in_flight(&mut state), [4, 3, 2, 1], "as if links were free");
        let span = |stage: u16, action: Action, start: u64| WorkerSpan {
            worker: WorkerId(stage),
            action,
            start: Micros(start),
            end: Micros(start + 1000),
        };
        let spans = |of: u16| {
            let (stage, microbatch) = (StageId(of), 0);
            [
                span(of, Action::Forward { stage, microbatch }, 0),
                span(of, Action::BackwardInput { stage, microbatch }, 1000),
                span(of, Action::BackwardWeight { stage, microbatch }, 2000),
            ]
        };
        let known: Vec<_> = (0..4).flat_map(spans).collect();
        let step = Duration::from_millis(3);
        // The first pass of a stage is slow.
        let slow = Action::Forward { stage: StageId(0), microbatch: 0 };
        state
            .observed
            .record_step(&[WorkerSpan { end: Micros(9_000_000), ..span(0, slow, 0) }], step);
        for _ in 0..2 {
            state.observed.record_step(&known[..9], step);
        }
        assert_eq!(in_flight(&mut state), [4, 3, 2, 1], "the last stage is not known");
        state.observed.record_step(&known, step);
        // A hop there and back takes as long as two microbatches. The first stage would have ten in
        // flight, the second seven.
        assert_eq!(in_flight(&mut state), [8, 6, 4, 1]);
        let short = ParallelSettings { shortages: 1, ..settings.clone() };
        let context = ScheduleContext { settings: &short, ..context };
        state.cache.clear();
        let schedule = state.schedule_of_step(&context, 16, Ending::Step).expect("it fits");
        let Order::Ready { in_flight, .. } = &schedule.order else { panic!("`ready` has no list") };
        assert_eq!(in_flight, &[4, 3, 2, 1], "memory ran short before");
    }
}
