//! The times of the last steps. They correct predictions, because layers measured alone do not
//! share caches and memory with their neighbours, nor the machine with other workers.

use pipeline::effect::WorkerSpan;
use pipeline::ids::{StageId, WorkerId};
use pipeline::replicas::StagePlacement;
use pipeline::schedule::{Action, Costs};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of newest actions of each kind that count, and of steps.
const ACTION_WINDOW: usize = 64;
const STEP_WINDOW: usize = 8;
/// The number of steps after which times are typical.
const TYPICAL_STEPS: usize = 3;
/// An hour: durations come from other machines, and are added up.
const MAX_ACTION_MICROS: u64 = 3_600_000_000;

/// Durations in nanoseconds, newest last.
#[derive(Debug, Default)]
pub(crate) struct ObservedTimes {
    actions: BTreeMap<(StageId, WorkerId, Kind), VecDeque<u64>>,
    /// The time of a step outside its actions: sending the batch and receiving the answers.
    overheads: VecDeque<u64>,
}

#[derive(Debug, Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Forward,
    Backward,
    BackwardInput,
    BackwardWeight,
    Reduce,
    OptimStep,
}

impl ObservedTimes {
    /// Records the times of a step: its actions, and the time from call to answer.
    pub(crate) fn record_step(&mut self, spans: &[WorkerSpan], time: Duration) {
        let begin = spans.iter().map(|span| span.start.0).min().unwrap_or(0);
        let end = spans.iter().map(|span| span.end.0).max().unwrap_or(0);
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        push_bounded(
            &mut self.overheads,
            time.saturating_sub(end.saturating_sub(begin).saturating_mul(1000)),
            STEP_WINDOW,
        );
        for span in spans {
            let kind = match span.action {
                Action::Forward { .. } => Kind::Forward,
                Action::Backward { .. } => Kind::Backward,
                Action::BackwardInput { .. } => Kind::BackwardInput,
                Action::BackwardWeight { .. } => Kind::BackwardWeight,
                Action::Reduce { .. } => Kind::Reduce,
                Action::OptimStep { .. } => Kind::OptimStep,
                _ => continue,
            };
            let durations =
                self.actions.entry((span.action.stage(), span.worker, kind)).or_default();
            let micros = span.end.0.saturating_sub(span.start.0).min(MAX_ACTION_MICROS);
            push_bounded(durations, micros * 1000, ACTION_WINDOW);
        }
    }

    /// Forgets the times of a worker.
    pub(crate) fn forget_worker(&mut self, worker: WorkerId) {
        self.actions.retain(|(_, of, _), _| *of != worker);
    }

    /// The costs with observed times in place of measured or unknown ones.
    pub(crate) fn replace_costs(&self, costs: Costs, stage_placement: &StagePlacement) -> Costs {
        self.replace(costs, stage_placement, mean)
    }

    /// The costs with typical times. The first pass, which may be slow, does not count.
    pub(crate) fn typical_costs(&self, costs: Costs, stage_placement: &StagePlacement) -> Costs {
        self.replace(costs, stage_placement, median)
    }

    /// Whether the typical times of all stages are known.
    pub(crate) fn knows_typical(&self, stage_placement: &StagePlacement) -> bool {
        let is_known = |(stage, workers): (StageId, &[WorkerId])| {
            workers.first().is_some_and(|first| self.microbatch_time(stage, *first).is_some())
        };
        self.overheads.len() >= TYPICAL_STEPS && stage_placement.iter().all(is_known)
    }

    fn replace(
        &self,
        mut costs: Costs,
        stage_placement: &StagePlacement,
        of: fn(&VecDeque<u64>) -> u64,
    ) -> Costs {
        for ((stage, worker, kind), durations) in &self.actions {
            let times = match stage_placement.first(*stage) == Some(*worker) {
                true => costs.stages.get_mut(stage.0 as usize),
                false => costs.replicas.get_mut(&(*stage, *worker)),
            };
            let Some(times) = times else { continue };
            let place = match kind {
                Kind::Forward => &mut times.forward,
                Kind::Backward => &mut times.backward,
                Kind::BackwardInput => &mut times.backward_input,
                Kind::BackwardWeight => &mut times.backward_weight,
                Kind::OptimStep => &mut times.optim_step,
                // It is predicted by the optimizer step's time.
                Kind::Reduce => continue,
            };
            *place = of(durations);
        }
        costs
    }

    /// The typical time of a microbatch forward and backward through a stage on a worker, in
    /// nanoseconds. `None` if it had none yet.
    ///
    /// Not the mean: a worker that was interrupted once in a few short actions is not slow, and a
    /// pool must not evict it.
    pub(crate) fn microbatch_time(&self, stage: StageId, worker: WorkerId) -> Option<u64> {
        let of = |kind| self.actions.get(&(stage, worker, kind)).map(median);
        let halves =
            of(Kind::BackwardInput).map(|input| input + of(Kind::BackwardWeight).unwrap_or(0));
        Some(of(Kind::Forward)? + of(Kind::Backward).or(halves)?)
    }

    /// The typical time of a worker for a stage once in a step, in nanoseconds.
    pub(crate) fn per_step_time(&self, stage: StageId, worker: WorkerId) -> u64 {
        let of = |kind| self.actions.get(&(stage, worker, kind)).map_or(0, median);
        of(Kind::Reduce) + of(Kind::OptimStep)
    }

    /// The time of a step outside of its first and last action, in nanoseconds.
    pub(crate) fn step_overhead(&self) -> Option<u64> {
        (!self.overheads.is_empty()).then(|| median(&self.overheads))
    }
}

fn push_bounded(list: &mut VecDeque<u64>, value: u64, most: usize) {
    list.push_back(value);
    while list.len() > most {
        list.pop_front();
    }
}

/// A step is as long as its actions are on average, the slow ones among them.
fn mean(list: &VecDeque<u64>) -> u64 {
    list.iter().sum::<u64>() / (list.len() as u64).max(1)
}

fn median(list: &VecDeque<u64>) -> u64 {
    let mut sorted: Vec<u64> = list.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::effect::Micros;
    use pipeline::schedule::StageTimes;

    fn span(action: Action, start: u64, end: u64) -> WorkerSpan {
        WorkerSpan { worker: WorkerId(0), action, start: Micros(start), end: Micros(end) }
    }

    #[test]
    fn what_was_observed_takes_the_place_of_what_was_measured() {
        let stage = StageId(0);
        let measured = StageTimes {
            forward: 1,
            backward: 2,
            backward_input: 3,
            backward_weight: 4,
            optim_step: 5,
        };
        let mut observed = ObservedTimes::default();
        let stage_placement = StagePlacement::single([WorkerId(0)]);
        let costs = Costs::of_stages(vec![measured]);
        assert_eq!(observed.replace_costs(costs.clone(), &stage_placement), costs);
        let forwards = [(10, 20), (20, 40)]
            .map(|(start, end)| span(Action::Forward { stage, microbatch: 0 }, start, end));
        observed.record_step(&forwards, Duration::from_micros(50));
        let corrected = observed.replace_costs(costs, &stage_placement);
        assert_eq!(corrected.stages[0], StageTimes { forward: 15_000, ..measured });
        assert_eq!(observed.step_overhead(), Some(20_000));
    }

    #[test]
    fn one_interruption_makes_no_worker_slow() {
        let (stage, mut observed) = (StageId(0), ObservedTimes::default());
        for step in 0..5 {
            let backward_ends = if step == 3 { 200_000 } else { 3000 };
            let spans = [
                span(Action::Forward { stage, microbatch: 0 }, 0, 1000),
                span(Action::Backward { stage, microbatch: 0 }, 1000, backward_ends),
                span(Action::OptimStep { stage }, 0, if step == 2 { 100_000 } else { 500 }),
            ];
            observed.record_step(&spans, Duration::from_secs(1));
        }
        assert_eq!(observed.microbatch_time(stage, WorkerId(0)), Some(3_000_000));
        assert_eq!(observed.per_step_time(stage, WorkerId(0)), 500_000);
    }

    #[test]
    fn old_steps_are_forgotten() {
        let mut observed = ObservedTimes::default();
        for step in 0..100 {
            let action = Action::OptimStep { stage: StageId(0) };
            observed.record_step(
                &[span(action, 0, if step < 36 { 1000 } else { 2 })],
                Duration::from_micros(1000),
            );
        }
        let corrected =
            observed.replace_costs(Costs::unit(1), &StagePlacement::single([WorkerId(0)]));
        assert_eq!(corrected.stages[0].optim_step, 2000);
    }
}
