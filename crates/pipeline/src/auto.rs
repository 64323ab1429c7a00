//! The choice of a schedule: every kind that fits is built and predicted for this fleet, and the
//! fastest wins.

use crate::cut::Cuts;
use crate::fleet::Fleet;
use crate::ids::WorkerId;
use crate::optimizer::OptimizerSpec;
use crate::plan::{Plan, PlanError, StageSpec};
use crate::replicas::Reduction;
use crate::replicas::WorkerGroups;
use crate::room::CutMemory;
use crate::saved_memory::SavedMemory;
use crate::schedule::{
    check_memory, timeline, Ending, Placement, Schedule, ScheduleError, ScheduleKind, Terms,
    Timeline,
};
use layerspec::{human, Bindings, LayerGraph, Producer};
use std::fmt;
use std::ops::RangeInclusive;

/// The training job and the choices that are open.
#[derive(Clone, Debug)]
pub struct SearchSpace {
    /// The cuts of the model.
    pub cuts: Cuts,
    /// The number of microbatches of a batch.
    pub microbatches: u32,
    /// Sizes of a microbatch, for every word of the model's inputs.
    pub sizes: Bindings,
    /// The bytes of a microbatch's targets. `None` if workers read inputs and targets from their
    /// own files.
    pub target_bytes: Option<u64>,
    /// The groupings of workers to try, from
    /// [`Replicas::groupings`](crate::replicas::Replicas::groupings). Empty if no stage has
    /// replicas.
    pub worker_groups: Vec<WorkerGroups>,
    /// How a step ends.
    pub ending: Ending,
    /// The order in which gradients are summed.
    pub reduction: Reduction,
    /// The optimizer, which determines the memory of its state.
    pub optimizer: OptimizerSpec,
    /// The number of stages on a worker in GPipe, interleaved 1F1B and `ready`. If it is `None`,
    /// GPipe has one, and the others try several.
    pub chunks: Option<u16>,
    /// The kinds that may be taken. If empty, all.
    pub kinds: Vec<ScheduleKind>,
}

/// One way to train.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The schedule's kind.
    pub kind: ScheduleKind,
    /// How stages are assigned to workers.
    pub placement: Placement,
    /// The number of workers at each place of the pipeline.
    pub replicas: Vec<u16>,
    /// The stages.
    pub plan: Plan,
    /// The actions.
    pub schedule: Schedule,
    /// Its predicted timeline, in nanoseconds.
    pub timeline: Timeline,
    /// Predicted time from call to answer, in nanoseconds.
    pub step_time: u64,
    /// For every worker the share of the step in which it waits, from 0 to 1.
    pub bubble: Vec<f64>,
    /// The most bytes that each worker holds.
    pub peak_bytes: Vec<u64>,
    /// The reason why it cannot be taken, if so: some worker has too little memory.
    pub refused: Option<ScheduleError>,
}

/// Step times within 2 % count as equal, because predictions are not more exact.
const AS_FAST: f64 = 1.02;
/// The possible and the impossible candidates.
#[derive(Debug)]
pub struct Choice {
    /// Everything that can be built: the fastest that fits memory first, and those that do not fit
    /// last.
    pub candidates: Vec<Candidate>,
    /// Everything that cannot be built: too few layers, or cuts for another number of stages.
    pub impossible: Vec<(ScheduleKind, Placement, PlanError)>,
}

/// The largest number of stages on a worker that is tried.
const MOST_CHUNKS: u16 = 4;

/// Builds and predicts every schedule.
///
/// # Errors
/// Nothing can be built: the error of the first that was tried.
pub fn choose(graph: &LayerGraph, fleet: &Fleet, space: &SearchSpace) -> Result<Choice, PlanError> {
    let (mut candidates, mut impossible) = (Vec::new(), Vec::new());
    let alone = [WorkerGroups::from(fleet.workers())];
    let worker_groups =
        if space.worker_groups.is_empty() { &alone[..] } else { &space.worker_groups };
    let all = worker_groups.iter().flat_map(|groups| {
        schedules(space, groups.len()).into_iter().map(move |schedule| (groups, schedule))
    });
    for (worker_groups, (kind, placement)) in all {
        let trial = Trial { graph, fleet, space, worker_groups, kind, placement };
        match trial.candidate() {
            Ok(candidate) => candidates.push(candidate),
            Err(error) => impossible.push((kind, placement, error)),
        }
    }
    // The sort is stable: of equally fast ones, the simpler one was tried first and stays first.
    candidates.sort_by_key(|c| (c.refused.is_some(), c.step_time));
    if candidates.is_empty() && !impossible.is_empty() {
        return Err(impossible.swap_remove(0).2);
    }
    Ok(Choice { candidates, impossible })
}

impl Choice {
    /// The candidate to take, of those that are allowed and fit memory: of all whose step time
    /// counts as equal to the fastest, the one with the least memory.
    pub fn best(&self, allowed: impl Fn(&Candidate) -> bool) -> Option<&Candidate> {
        let fitting = || self.candidates.iter().filter(|c| c.refused.is_none() && allowed(c));
        let fastest = fitting().map(|c| c.step_time).min()?;
        let alike = fitting().filter(|c| c.step_time as f64 <= fastest as f64 * AS_FAST);
        alike.min_by_key(|c| c.peak_bytes.iter().max().copied())
    }
}

/// Kinds with their placements on `places` places, the simplest first.
fn schedules(space: &SearchSpace, places: usize) -> Vec<(ScheduleKind, Placement)> {
    let mut schedules = Vec::new();
    // A list of cuts sets the number of stages, which may be more than is tried otherwise.
    let named = match &space.cuts {
        Cuts::At(names) => u16::try_from((names.len() + 1) / places.max(1)).ok(),
        Cuts::Auto => None,
    };
    let interleaved = |tried: RangeInclusive<u16>| {
        let more = named.filter(|chunks| chunks > tried.end());
        tried.chain(more).map(|chunks| Placement::Interleaved { chunks })
    };
    for (_, kind) in ScheduleKind::NAMES {
        if !space.kinds.is_empty() && !space.kinds.contains(&kind) {
            continue;
        }
        let placements: Vec<Placement> = match kind {
            ScheduleKind::Ready if space.chunks == Some(1) => vec![Placement::Plain],
            ScheduleKind::Interleaved | ScheduleKind::Ready if space.chunks.is_some() => {
                space.chunks.map(|chunks| Placement::Interleaved { chunks }).into_iter().collect()
            }
            ScheduleKind::Interleaved => interleaved(2..=MOST_CHUNKS).collect(),
            ScheduleKind::Ready => {
                let several = interleaved(2..=2);
                [Placement::Plain].into_iter().chain(several).chain([Placement::V]).collect()
            }
            _ => vec![Placement::of(kind, space.chunks)],
        };
        schedules.extend(placements.into_iter().map(|placement| (kind, placement)));
    }
    schedules
}

/// A kind of schedule with a placement on groups of workers, to build and predict.
struct Trial<'a> {
    graph: &'a LayerGraph,
    fleet: &'a Fleet,
    space: &'a SearchSpace,
    worker_groups: &'a WorkerGroups,
    kind: ScheduleKind,
    placement: Placement,
}

impl Trial<'_> {
    /// The best of a few cuts.
    fn candidate(&self) -> Result<Candidate, PlanError> {
        let Trial { fleet, space, .. } = self;
        let memory = CutMemory {
            all: fleet.memory.clone(),
            spared: fleet.spared.clone(),
            copies: Some(2 + space.optimizer.state_copies()),
            activations: Vec::new(),
        };
        let first = self.predicted(&memory)?;
        // What is to be spared is spared beside the activations.
        let is_good = first.refused.is_none() && fleet.spared.is_empty();
        if is_good || space.cuts != Cuts::Auto {
            return Ok(first);
        }
        // Another cut may leave room for the activations, which are known now; or, by chance, one
        // for an optimizer with more state.
        let activations = self.activations(&first);
        let others =
            [CutMemory { activations, ..memory.clone() }, CutMemory { copies: None, ..memory }];
        let mut others = others.iter().filter_map(|memory| self.predicted(memory).ok());
        Ok(others.find(|other| other.refused.is_none()).unwrap_or(first))
    }

    /// For each stage, the bytes of each layer's activations in the microbatches that it holds at
    /// once.
    fn activations(&self, candidate: &Candidate) -> Vec<Vec<u64>> {
        let Trial { graph, fleet, space, .. } = self;
        let value = |value| graph.value(value).ty.bytes(&space.sizes).unwrap_or(0);
        // As `Fleet::bytes` counts it, with the layer that computes it.
        let judged = graph.outputs().first().copied();
        let judged_by = judged.map(|output| match graph.value(output).producer {
            Producer::Layer { layer, .. } => (layer.0 as usize, value(output)),
            Producer::Input(_) => (0, 0),
        });
        let of_stage = |stage: &StageSpec| {
            let home = candidate.plan.home(stage.stage).unwrap_or(WorkerId(0));
            let once = SavedMemory::by_layer(graph.layers(), |l| fleet.time(home, l.id), value);
            let held = candidate.timeline.peak_held(stage.stage) as u64;
            let mut all: Vec<_> =
                once.into_iter().map(|bytes| bytes.saturating_mul(held)).collect();
            if let Some((bytes, prediction)) =
                judged_by.and_then(|(layer, bytes)| Some((all.get_mut(layer)?, bytes)))
            {
                *bytes = bytes.saturating_add(prediction.saturating_mul(held + 1));
            }
            all
        };
        candidate.plan.stages.iter().map(of_stage).collect()
    }

    /// Cuts with this memory in mind, and predicts a step.
    fn predicted(&self, memory: &CutMemory) -> Result<Candidate, PlanError> {
        let Trial { graph, fleet, space, worker_groups, kind, placement } = *self;
        let plan = match &space.cuts {
            Cuts::Auto => {
                let groups = worker_groups.clone();
                Plan::balanced(graph, groups, placement, memory, |worker, layer| {
                    let time = fleet.time(worker, layer);
                    time.forward.saturating_add(time.backward)
                })?
            }
            named => Plan::new(graph, named, worker_groups.clone(), placement)?,
        };
        let plan = plan.sharded(fleet.sharding);
        let costs = fleet.costs(graph, &plan, &space.sizes, space.target_bytes);
        let bytes = fleet.bytes(graph, &plan, &space.sizes, &space.optimizer);
        let (microbatches, ending) = (space.microbatches, space.ending);
        let room = fleet.room(&plan, &bytes);
        let microbatch_assignment = fleet.microbatch_assignment(&plan, microbatches);
        let terms = Terms {
            kind,
            microbatches,
            ending,
            reduction: space.reduction,
            microbatch_assignment: Some(microbatch_assignment),
            costs: Some(costs.clone()),
            room,
        };
        let schedule = plan.schedule_for(&terms)?;
        let played = timeline(&schedule, &costs).map_err(ScheduleError::Deadlock)?;
        Ok(Candidate {
            kind,
            placement,
            replicas: worker_groups.replicas(),
            step_time: played.step_time,
            bubble: played.bubble(),
            peak_bytes: played.peak_bytes(&schedule.layout, &bytes),
            refused: check_memory(&played, &schedule.layout, &bytes, &fleet.device_memory()).err(),
            timeline: played,
            schedule,
            plan,
        })
    }
}

impl Candidate {
    /// The number of stages and their placement.
    fn stages(&self) -> String {
        match &self.replicas[..] {
            [each, rest @ ..] if *each > 1 && rest.iter().all(|n| n == each) => {
                format!("{}, {each} replicas each", self.placement)
            }
            replicas if replicas.iter().all(|n| *n == 1) => self.placement.to_string(),
            replicas => {
                let numbers: Vec<_> = replicas.iter().map(u16::to_string).collect();
                format!("{}, {} replicas", self.placement, numbers.join(" + "))
            }
        }
    }
}

impl fmt::Display for Choice {
    /// A table, one schedule a line, the one to take marked.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let best = self.best(|_| true).map(std::ptr::from_ref);
        writeln!(
            f,
            "  {:<12} {:<40} {:>10} {:>7} {:>10}",
            "schedule", "stages", "step", "waits", "memory"
        )?;
        for candidate in &self.candidates {
            let waits =
                candidate.bubble.iter().sum::<f64>() / candidate.bubble.len().max(1) as f64 * 100.0;
            let memory = human::size(candidate.peak_bytes.iter().max().copied().unwrap_or(0));
            let step = human::time(candidate.step_time);
            let (kind, placement) = (candidate.kind.to_string(), candidate.stages());
            let refused =
                candidate.refused.as_ref().map(|error| format!("  {error}")).unwrap_or_default();
            let mark = if best == Some(std::ptr::from_ref(candidate)) { '*' } else { ' ' };
            let figures = format!("{step:>10} {waits:>5.1} % {memory:>10}");
            writeln!(f, "{mark} {kind:<12} {placement:<40} {figures}{refused}")?;
        }
        for (kind, placement, error) in &self.impossible {
            let (kind, placement) = (kind.to_string(), placement.to_string());
            writeln!(f, "  {kind:<12} {placement:<40} {error}")?;
        }
        Ok(())
    }
}
