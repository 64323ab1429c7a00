//! The plan: a model cut into stages and placed on workers, with the inputs and outputs of each
//! stage.

use crate::cut::{balanced_by, balanced_within, CutPlace, Cuts, TooFewLayers};
use crate::ids::{StageId, WorkerId};
use crate::replicas::{is_reduced, MicrobatchAssignment, Sharding, StagePlacement, WorkerGroups};
use crate::room::{limits, CutMemory};
use crate::schedule::{check, Layout, Placement, Schedule, ScheduleError, ScheduleKind, Terms};
use crate::stage_spec::stage_of;
use crate::tied;
use layerspec::{human, Bindings, Layer, LayerGraph, LayerId, Producer, ValueId};
use std::collections::BTreeSet;
use std::ops::Range;
use thiserror::Error;

pub use crate::stage_spec::{StageInput, StageOutput, StageSpec, TiedCopy, TiedOwner};

/// Every stage and its workers.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The stages in the order of the model.
    pub stages: Vec<StageSpec>,
    /// For every stage its workers.
    pub stage_placement: StagePlacement,
    /// The pairs of stages (maker, user) between which a variable goes.
    pub edges: Vec<(StageId, StageId)>,
    /// The state that replicas of a stage shard. `None` if each has all of it.
    pub sharding: Option<Sharding>,
}

/// Why a model cannot be cut as asked.
#[derive(Debug, Error)]
pub enum PlanError {
    /// A cut names no layer.
    #[error("cuts: there is no layer `{name}`; layers are named {known}")]
    UnknownLayer {
        /// The name.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// Cuts are not in the order of the model, or one is the first layer or doubled.
    #[error(
        "cuts: layer `{0}` cannot start a new stage here; name layers after the first, in the \
         order of the model"
    )]
    Order(String),
    /// The number of stages that the cuts make is not that of the placement.
    #[error(
        "the cuts make {stages} stages but a pipeline of {workers} workers with {placement} takes \
         {}; name {} layers, or none to have them chosen",
        .workers * .placement.chunks(), (.workers * .placement.chunks()).saturating_sub(1)
    )]
    Workers {
        /// The number of stages that the cuts make.
        stages: usize,
        /// The number of workers of a pipeline, without further replicas.
        workers: usize,
        /// The assignment of stages to them.
        placement: Placement,
    },
    /// The automatic cut found no solution.
    #[error(transparent)]
    TooFewLayers(#[from] TooFewLayers),
    /// A worker cannot store the parameters of its stages.
    #[error(
        "{worker} needs {} of memory for the parameters of its layers, and has {}; use more \
         workers, or one with more memory, or other `cuts`",
        human::size(*.needed), human::size(*.available)
    )]
    TooLittleMemory {
        /// Which worker.
        worker: WorkerId,
        /// The bytes of its parameters.
        needed: u64,
        /// The bytes that it may hold.
        available: u64,
    },
    /// The schedule was refused.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

impl Plan {
    /// Cuts a model into stages for a number of workers, or for groups of workers with the same
    /// stages. Automatic cuts are balanced by FLOPs, shared by the replicas of a stage.
    pub fn new(
        graph: &LayerGraph,
        cuts: &Cuts,
        worker_groups: impl Into<WorkerGroups>,
        placement: Placement,
    ) -> Result<Self, PlanError> {
        Self::within(graph, cuts, worker_groups, placement, &CutMemory::default())
    }

    /// As [`Plan::new`]. An automatic cut leaves each worker with layers whose training, or else
    /// whose parameters, fit into its memory, if there is such a cut.
    pub fn within(
        graph: &LayerGraph,
        cuts: &Cuts,
        worker_groups: impl Into<WorkerGroups>,
        placement: Placement,
        memory: &CutMemory,
    ) -> Result<Self, PlanError> {
        let worker_groups = worker_groups.into();
        let starts = match cuts {
            Cuts::Auto => {
                let stage_placement = placement.stage_placement(&worker_groups);
                let work = flops_of_replicas(graph, &stage_placement);
                automatic(graph, &work, &stage_placement, memory)?
            }
            Cuts::At(names) => named(graph, names, worker_groups.len(), placement)?,
        };
        Ok(Self::cut(graph, starts, &worker_groups, placement))
    }

    /// As [`Plan::within`] with automatic cuts, balanced by measured times. `time` returns the time
    /// of a layer on a worker, for one microbatch forward and backward. So workers of unequal speed
    /// are busy for equal times. Workers with the same stages count as one, whose speed is the sum
    /// of theirs.
    pub fn balanced(
        graph: &LayerGraph,
        worker_groups: impl Into<WorkerGroups>,
        placement: Placement,
        memory: &CutMemory,
        time: impl Fn(WorkerId, LayerId) -> u64,
    ) -> Result<Self, PlanError> {
        let worker_groups = worker_groups.into();
        let together = |workers: &[WorkerId], layer: LayerId| match workers {
            [only] => time(*only, layer),
            several => {
                (1.0 / several.iter().map(|w| 1.0 / time(*w, layer).max(1) as f64).sum::<f64>())
                    as u64
            }
        };
        let stage_placement = placement.stage_placement(&worker_groups);
        let times = stage_placement
            .iter()
            .map(|(_, w)| graph.layers().iter().map(|layer| together(w, layer.id)).collect());
        let starts = automatic(graph, &times.collect::<Vec<_>>(), &stage_placement, memory)?;
        Ok(Self::cut(graph, starts, &worker_groups, placement))
    }

    fn cut(
        graph: &LayerGraph,
        starts: Vec<usize>,
        worker_groups: &WorkerGroups,
        placement: Placement,
    ) -> Self {
        let layers = graph.layers().len();
        let bounds: Vec<usize> = [0].into_iter().chain(starts).chain([layers]).collect();
        let ranges: Vec<Range<usize>> = bounds.windows(2).map(|w| w[0]..w[1]).collect();
        let stages: Vec<_> =
            (0..ranges.len()).map(|s| stage(graph, &ranges, StageId(s as u16))).collect();
        let edges = stages
            .iter()
            .flat_map(|s| s.outputs.iter().flat_map(|o| o.to.iter().map(|to| (s.stage, *to))));
        let edges: BTreeSet<_> = edges.collect();
        Plan {
            stage_placement: placement.stage_placement(worker_groups),
            edges: edges.into_iter().collect(),
            stages,
            sharding: None,
        }
    }

    /// The same plan, with replicas that shard this state.
    #[must_use]
    pub fn sharded(self, sharding: Option<Sharding>) -> Self {
        Plan { sharding, ..self }
    }

    /// Orders the assigned microbatches as the sharding of the plan needs: in turns if gradients
    /// are sharded.
    pub fn ordered(&self, microbatch_assignment: MicrobatchAssignment) -> MicrobatchAssignment {
        if self.sharding.is_some_and(Sharding::shards_gradients) {
            microbatch_assignment.in_turn()
        } else {
            microbatch_assignment
        }
    }

    /// The checked schedule of a training step, with costs and memory unknown.
    pub fn schedule(&self, kind: ScheduleKind, microbatches: u32) -> Result<Schedule, PlanError> {
        self.schedule_for(&Terms::new(kind, microbatches))
    }

    /// The checked schedule of a training step.
    pub fn schedule_for(&self, terms: &Terms) -> Result<Schedule, PlanError> {
        let schedule = Schedule::new(&self.layout(), terms)?;
        check(&schedule)?;
        Ok(schedule)
    }

    /// The layout, on which schedules depend.
    pub fn layout(&self) -> Layout {
        let inputs = self.stages.iter().flat_map(|s| s.inputs.iter().map(|i| (s.stage, i)));
        let back = inputs
            .filter(|(_, input)| input.needs_grad)
            .filter_map(|(user, i)| Some((i.from?, user)));
        let back: BTreeSet<_> = back.collect();
        let ties = self.stages.iter().flat_map(|s| s.tied_copies.iter().map(|b| (b.from, s.stage)));
        let ties: BTreeSet<_> = ties.collect();
        Layout {
            stage_placement: self.stage_placement.clone(),
            edges: self.edges.clone(),
            back: back.into_iter().collect(),
            trained: self.stages.iter().map(StageSpec::is_trained).collect(),
            reduced: self.stages.iter().map(is_reduced).collect(),
            ties: ties.into_iter().collect(),
            sharding: self.sharding,
        }
    }

    /// The number of workers of the plan.
    pub fn workers(&self) -> usize {
        self.stage_placement.workers()
    }

    /// The first replica of a stage, which reports for all of them.
    pub fn home(&self, stage: StageId) -> Option<WorkerId> {
        self.stage_placement.first(stage)
    }

    /// The first replica of the stage with a layer.
    pub fn home_of_layer(&self, layer: LayerId) -> Option<WorkerId> {
        let stage = self.stages.iter().find(|s| s.layers.iter().any(|l| l.id == layer))?;
        self.home(stage.stage)
    }

    /// The stages whose workers hold a parameter or buffer of a layer: the stage of the layer, and
    /// those with tied copies. Loaded parameters go to all replicas of these stages. Only the first
    /// replica of the first stage sends them. Stages on the same workers count once.
    pub fn holders(&self, layer: LayerId, parameter: &str) -> Vec<StageId> {
        let mut reached: BTreeSet<WorkerId> = BTreeSet::new();
        let owns = |stage: &&StageSpec| stage.layers.iter().any(|l| l.id == layer);
        let borrows = |stage: &&StageSpec| {
            let lends = |b: &TiedCopy| b.owner.id == layer && stage.shared(b).contains(&parameter);
            stage.tied_copies.iter().any(lends)
        };
        let stages =
            self.stages.iter().find(owns).into_iter().chain(self.stages.iter().filter(borrows));
        let reaches_more = |stage: &StageId| {
            let before = reached.len();
            reached.extend(self.stage_placement.of(*stage));
            reached.len() > before
        };
        stages.map(|stage| stage.stage).filter(reaches_more).collect()
    }

    /// The stages whose replicas sum gradients, ascending.
    pub fn summing(&self) -> impl Iterator<Item = StageId> + '_ {
        let trained = self.stages.iter().filter(|spec| spec.is_trained()).map(|spec| spec.stage);
        trained.filter(|stage| self.stage_placement.of(*stage).len() > 1)
    }

    /// Whether workers copy their state one stage after the other: with sharded parameters, a
    /// worker may not have room for those of all its stages.
    pub fn copies_stage_by_stage(&self) -> bool {
        let layout = self.layout();
        self.stages.iter().any(|spec| layout.shards_parameters(spec.stage))
    }

    /// The stages of a worker.
    pub fn stages_of(&self, worker: WorkerId) -> Vec<StageSpec> {
        self.stages.iter().filter(|s| self.stage_placement.has(s.stage, worker)).cloned().collect()
    }

    /// The workers that exchange tensors with this one.
    pub fn peers_of(&self, worker: WorkerId) -> BTreeSet<WorkerId> {
        let ties = self.stages.iter().flat_map(|s| s.tied_copies.iter().map(|b| (b.from, s.stage)));
        let replicas = self.stages.iter().map(|s| (s.stage, s.stage));
        let pairs = self.edges.iter().copied().chain(ties).chain(replicas);
        let mut peers = BTreeSet::new();
        for (a, b) in pairs {
            for (one, other) in [(a, b), (b, a)] {
                if self.stage_placement.has(one, worker) {
                    peers.extend(self.stage_placement.of(other));
                }
            }
        }
        peers.remove(&worker);
        peers
    }
}

fn stage(graph: &LayerGraph, ranges: &[Range<usize>], stage: StageId) -> StageSpec {
    let mine = &ranges[stage.0 as usize];
    let layers: Vec<Layer> = graph.layers()[mine.clone()].to_vec();
    let producer = |value: ValueId| match graph.value(value).producer {
        Producer::Input(_) => None,
        Producer::Layer { layer, .. } => Some(StageId(stage_of(ranges, layer) as u16)),
    };
    let users = |value: ValueId| -> BTreeSet<StageId> {
        graph.users(value).iter().map(|u| StageId(stage_of(ranges, u.layer) as u16)).collect()
    };
    let model_output =
        |value: ValueId| graph.outputs().iter().position(|o| *o == value).map(|i| i as u32);

    let used: BTreeSet<ValueId> = layers.iter().flat_map(|l| l.inputs.iter().copied()).collect();
    let foreign = used.into_iter().filter(|v| producer(*v) != Some(stage));
    let inputs = foreign.map(|value| {
        let uses_here =
            graph.users(value).iter().filter(|u| mine.contains(&(u.layer.0 as usize))).count();
        let last_user = users(value).last() == Some(&stage);
        StageInput {
            value,
            from: producer(value),
            needs_grad: graph.requires_grad(value),
            sum_here: uses_here == 1 || (last_user && model_output(value).is_none()),
        }
    });
    let outputs = layers.iter().flat_map(|l| l.outputs.iter().copied()).filter_map(|value| {
        let to: Vec<StageId> = users(value).into_iter().rev().filter(|s| *s != stage).collect();
        let model_output = model_output(value);
        let leaves = !to.is_empty() || model_output.is_some();
        leaves.then(|| StageOutput {
            value,
            to,
            model_output,
            needs_grad: graph.requires_grad(value),
        })
    });
    StageSpec {
        stage,
        inputs: inputs.collect(),
        outputs: outputs.collect(),
        tied_copies: tied::tied_copies(graph, ranges, mine),
        tied_owners: tied::tied_owners(graph, ranges, mine),
        layers: layers.clone(),
    }
}

/// Sizes for dimensions that only a batch determines: one sample, and 64 for any other dimension,
/// for example a sequence's length.
fn one_sample(graph: &LayerGraph) -> Bindings {
    let size = |word: &str| if graph.batch() == Some(word) { 1 } else { 64 };
    graph.symbols().iter().fold(Bindings::new(), |bindings, word| bindings.with(word, size(word)))
}

fn flops(graph: &LayerGraph) -> Vec<u64> {
    let one_sample = one_sample(graph);
    let flops = |layer: &Layer| graph.cost(layer.id, &one_sample).map_or(0, |cost| cost.flops);
    graph.layers().iter().map(flops).collect()
}

/// The FLOPs of each layer on each stage for one replica. Replicas share the microbatches. If all
/// stages have as many replicas, they are those of one.
fn flops_of_replicas(graph: &LayerGraph, stage_placement: &StagePlacement) -> Vec<Vec<u64>> {
    let flops = flops(graph);
    let replicas: Vec<u64> = stage_placement.iter().map(|(_, w)| w.len().max(1) as u64).collect();
    let most = replicas.iter().copied().max().unwrap_or(1);
    let share = |all: &u64, replicas: u64| all.saturating_mul(most) / replicas;
    replicas.into_iter().map(|of| flops.iter().map(|all| share(all, of)).collect()).collect()
}

/// The first layers of stages that are balanced by the work of each layer on each stage.
fn automatic(
    graph: &LayerGraph,
    work: &[Vec<u64>],
    stage_placement: &StagePlacement,
    memory: &CutMemory,
) -> Result<Vec<usize>, TooFewLayers> {
    let places = places(graph);
    let fitting = limits(graph, stage_placement, memory)
        .find_map(|limits| balanced_within(&places, work, &limits));
    fitting.map_or_else(|| balanced_by(&places, work), Ok)
}

/// The cost of a cut before each layer.
fn places(graph: &LayerGraph) -> Vec<CutPlace> {
    let one_sample = one_sample(graph);
    let count = graph.layers().len();
    let position = |layer: LayerId| layer.0 as usize;
    // change[i]: the bytes that cross a cut before layer i, less those that cross one before layer
    // i
    // - 1.
    let mut change = vec![0i128; count + 2];
    let mut ties = vec![0u64; count];
    for value in graph.values() {
        let start = match value.producer {
            Producer::Input(_) => continue,
            Producer::Layer { layer, .. } => position(layer),
        };
        let end = graph.users(value.id).iter().map(|u| position(u.layer)).max().unwrap_or(start);
        let size = i128::from(value.ty.bytes(&one_sample).unwrap_or(0));
        change[start + 1] += size;
        change[end + 1] -= size;
    }
    for layer in graph.layers() {
        if let Some(owner) = layer.share {
            ties[position(owner) + 1..=position(layer.id)].iter_mut().for_each(|n| *n += 1);
        }
    }
    let mut crossing = 0i128;
    let places = ties.into_iter().enumerate().map(|(i, ties)| {
        crossing += change[i];
        CutPlace { ties, bytes: u64::try_from(crossing).unwrap_or(u64::MAX) }
    });
    places.collect()
}

fn named(
    graph: &LayerGraph,
    names: &[String],
    workers: usize,
    placement: Placement,
) -> Result<Vec<usize>, PlanError> {
    let mut starts = Vec::with_capacity(names.len());
    for name in names {
        let layer = graph.layer_by_name(name).ok_or_else(|| {
            let known = graph.layers().iter().map(|l| l.name.as_str());
            let mut known: Vec<_> = known.take(12).collect();
            if graph.layers().len() > known.len() {
                known.push("...");
            }
            PlanError::UnknownLayer { name: name.clone(), known: known.join(", ") }
        })?;
        let start = layer.0 as usize;
        if start == 0 || starts.last().is_some_and(|last| *last >= start) {
            return Err(PlanError::Order(name.clone()));
        }
        starts.push(start);
    }
    if starts.len() + 1 != workers * placement.chunks() {
        return Err(PlanError::Workers { stages: starts.len() + 1, workers, placement });
    }
    Ok(starts)
}
