//! The fleet: times of layers on each worker, links between workers, and memory; and the cost of a
//! plan on them.

use crate::ids::{StageId, WorkerId};
use crate::layer_times::LayerTimes;
use crate::optimizer::OptimizerSpec;
use crate::plan::{Plan, StageSpec};
use crate::replicas::{buckets, Bucket, BucketBytes, Compress, MicrobatchAssignment, Sharding};
use crate::room::rounded;
use crate::saved_memory::SavedMemory;
use crate::schedule::{Costs, DeviceMemory, Link, Process, StageBytes, StageTimes};
use layerspec::{Bindings, Layer, LayerGraph, LayerId, ParamSpec, Role, ValueId};
use std::collections::BTreeMap;

/// Workers and the links between them. Times are in nanoseconds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fleet {
    /// The times of one microbatch, for every worker and layer, in the order of the model.
    pub times: Vec<Vec<LayerTimes>>,
    /// The measured links.
    pub links: BTreeMap<(WorkerId, WorkerId), Link>,
    /// Any other link.
    pub link: Link,
    /// The measured links between the boss and workers.
    pub boss_links: BTreeMap<WorkerId, Link>,
    /// The machine of each process, as in [`Costs::machines`].
    pub machines: BTreeMap<Process, u32>,
    /// The overhead of each action.
    pub per_action: u64,
    /// The memory limit of every worker in bytes, if known.
    pub memory: Vec<Option<u64>>,
    /// The workers on each device, if some share one. `memory` has a part of it for each then.
    pub devices: Vec<DeviceMemory>,
    /// Less than that, from which automatic cuts rather come. Empty if all may be used.
    pub spared: Vec<Option<u64>>,
    /// The form in which replicas exchange gradients, if not float32.
    pub compress: Option<Compress>,
    /// The state that replicas shard, if any.
    pub sharding: Option<Sharding>,
}

impl Fleet {
    /// A fleet without measurements: equal workers with this rate of floating-point operations per
    /// second, and no delay. `sizes` are those of a microbatch.
    pub fn estimated(
        graph: &LayerGraph,
        workers: usize,
        sizes: &Bindings,
        flops_per_second: f64,
    ) -> Self {
        let time = |layer: &Layer| {
            let cost = graph.cost(layer.id, sizes).unwrap_or_default();
            let forward = (cost.flops as f64 * 1e9 / flops_per_second.max(1.0)) as u64 + 1;
            // The half for inputs costs as much as the forward pass, and so does the half for
            // parameters, if any.
            let weight = if is_trained(graph, layer) { forward } else { 0 };
            LayerTimes {
                forward,
                backward: forward + weight,
                backward_input: forward,
                backward_weight: weight,
                optim_step: (cost.params as f64 * 10.0 * 1e9 / flops_per_second.max(1.0)) as u64,
                saved_bytes: cost.activation_bytes,
                saved_bytes_between: if weight > 0 { cost.activation_bytes } else { 0 },
                ..LayerTimes::default()
            }
        };
        let times: Vec<LayerTimes> = graph.layers().iter().map(time).collect();
        Fleet { times: vec![times; workers], memory: vec![None; workers], ..Fleet::default() }
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.times.len()
    }

    /// The times of one microbatch in a layer on a worker.
    pub fn time(&self, worker: WorkerId, layer: LayerId) -> LayerTimes {
        let of_worker = self.times.get(worker.0 as usize);
        of_worker.and_then(|times| times.get(layer.0 as usize)).copied().unwrap_or_default()
    }

    /// The costs of a plan's stages and messages, for microbatches of these sizes and with this
    /// number of bytes of targets. `None` if workers read inputs and targets from their own files.
    pub fn costs(
        &self,
        graph: &LayerGraph,
        plan: &Plan,
        sizes: &Bindings,
        target_bytes: Option<u64>,
    ) -> Costs {
        let times = |s: &StageSpec, worker: WorkerId| {
            let times = self.stage_times(s, worker);
            StageTimes { optim_step: times.optim_step / parts(plan, s.stage), ..times }
        };
        let first = |s: &StageSpec| times(s, plan.home(s.stage).unwrap_or(WorkerId(0)));
        let mut costs = Costs::of_stages(plan.stages.iter().map(first).collect());
        for stage in &plan.stages {
            for worker in plan.stage_placement.of(stage.stage).iter().skip(1) {
                costs.replicas.insert((stage.stage, *worker), times(stage, *worker));
            }
            let bytes = |bucket: &Bucket| {
                self.compress.map_or(bucket.bytes(), |form| form.bytes(bucket.elements()))
            };
            let buckets = buckets(stage, BucketBytes::default(), None);
            let gradients = buckets.iter().map(bytes).sum();
            costs.reduced_bytes.insert(stage.stage, gradients);
            // Updated parameters are never compressed.
            let whole = buckets.iter().map(Bucket::bytes).sum();
            costs
                .returned_bytes
                .insert(stage.stage, if plan.sharding.is_some() { whole } else { gradients });
        }
        costs.links.clone_from(&self.links);
        costs.boss_links.clone_from(&self.boss_links);
        costs.machines.clone_from(&self.machines);
        (costs.link, costs.per_action) = (self.link, self.per_action);
        let value = |value: ValueId| graph.value(value).ty.bytes(sizes).unwrap_or(0);
        for stage in &plan.stages {
            let inputs = stage
                .inputs
                .iter()
                .filter(|input| input.from.is_none())
                .map(|input| value(input.value));
            let is_judged = stage.outputs.iter().any(|output| output.model_output == Some(0));
            let from_boss = target_bytes
                .map_or(0, |target| inputs.sum::<u64>() + if is_judged { target } else { 0 });
            if from_boss > 0 {
                costs.from_boss.insert(stage.stage, from_boss);
            }
            for (output, user) in
                stage.outputs.iter().flat_map(|o| o.to.iter().map(move |user| (o, user)))
            {
                *costs.bytes.entry((stage.stage, *user)).or_insert(0) += value(output.value);
            }
            for tied_copies in &stage.tied_copies {
                let bytes = tied_copy_bytes(stage, tied_copies);
                *costs.tied_bytes.entry((tied_copies.from, stage.stage)).or_insert(0) += bytes;
            }
        }
        costs
    }

    fn stage_times(&self, stage: &StageSpec, home: WorkerId) -> StageTimes {
        let times = || stage.layers.iter().map(|layer| self.time(home, layer.id));
        StageTimes {
            forward: times().map(|t| t.forward).sum(),
            backward: times().map(|t| t.backward).sum(),
            backward_input: times().map(|t| t.backward_input).sum(),
            backward_weight: times().map(|t| t.backward_weight).sum(),
            optim_step: times().map(|t| t.optim_step).sum(),
        }
    }

    /// Assigns microbatches to replicas so that the slowest replica finishes as early as possible.
    pub fn microbatch_assignment(&self, plan: &Plan, microbatches: u32) -> MicrobatchAssignment {
        let speed = |stage, worker| self.microbatch(plan, stage, worker);
        plan.ordered(MicrobatchAssignment::by_speed(&plan.stage_placement, microbatches, speed))
    }

    /// The time of one microbatch forward and backward through a stage on a worker.
    pub fn microbatch(&self, plan: &Plan, stage: StageId, worker: WorkerId) -> u64 {
        let layers = plan.stages.iter().filter(|s| s.stage == stage).flat_map(|s| &s.layers);
        let times = layers.map(|layer| self.time(worker, layer.id));
        times.fold(0u64, |sum, t| sum.saturating_add(t.forward).saturating_add(t.backward))
    }

    /// The memory of a plan's stages, in bytes.
    ///
    /// Permanent memory: the value of every parameter and buffer, and the gradient and optimizer
    /// state of a trained parameter. Optimizer state is no copy for SGD, one with momentum and two
    /// for Adam, or this replica's shard of them. A copied parameter has its value and a gradient
    /// for each use. A layer in mixed precision has its parameters in a 16-bit type, too. Memory of
    /// a microbatch: the bytes that the stage's layers keep from forward to backward, and between
    /// the halves of backward, as measured; a value that several layers keep counts once. The stage
    /// with the loss keeps the gradient of the prediction, and once the prediction. Not counted:
    /// libtorch itself, tensors in flight, the working memory of one layer, and sums of replicas
    /// that wait for their neighbours. `sizes` are those of a microbatch.
    pub fn bytes(
        &self,
        graph: &LayerGraph,
        plan: &Plan,
        sizes: &Bindings,
        optimizer: &OptimizerSpec,
    ) -> Vec<StageBytes> {
        let value = |value: ValueId| graph.value(value).ty.bytes(sizes).unwrap_or(0);
        let of_stage = |stage: &StageSpec| {
            let home = plan.home(stage.stage).unwrap_or(WorkerId(0));
            let saved = SavedMemory::of(stage, |layer| self.time(home, layer.id));
            let judged = stage.outputs.iter().filter(|output| output.model_output == Some(0));
            let prediction: u64 = judged.map(|output| value(output.value)).sum();
            StageBytes {
                fixed: fixed(stage, optimizer, plan).saturating_add(prediction),
                gathered: gathered(stage, plan),
                held: saved.forward(value).saturating_add(prediction),
                held_between: saved.between(value),
            }
        };
        plan.stages.iter().map(of_stage).collect()
    }

    /// The memory of every device, with its workers.
    pub(crate) fn device_memory(&self) -> Vec<DeviceMemory> {
        if !self.devices.is_empty() {
            return self.devices.clone();
        }
        let of_worker = |(worker, bytes): (usize, &Option<u64>)| {
            Some(DeviceMemory { workers: vec![WorkerId(worker as u16)], bytes: (*bytes)? })
        };
        self.memory.iter().enumerate().filter_map(of_worker).collect()
    }

    /// The number of microbatches that fit each stage's worker, if every limit is known.
    pub fn room(&self, plan: &Plan, bytes: &[StageBytes]) -> Option<Vec<u32>> {
        let of = |stage: StageId| bytes.get(stage.0 as usize).copied().unwrap_or_default();
        let (layout, devices) = (plan.layout(), self.device_memory());
        let room = |worker: WorkerId| {
            let device = devices.iter().find(|device| device.workers.contains(&worker))?;
            let stages = || device.workers.iter().flat_map(|w| layout.stages_of(*w)).map(of);
            let left = device.bytes.saturating_sub(stages().map(|b| b.fixed).sum());
            let each = stages().map(|b| b.held.max(b.held_between)).sum::<u64>().max(1);
            Some(u32::try_from(left / each).unwrap_or(u32::MAX).max(1))
        };
        let least = |workers: &[WorkerId]| {
            workers.iter().map(|w| room(*w)).collect::<Option<Vec<_>>>()?.into_iter().min()
        };
        plan.stage_placement.iter().map(|(_, workers)| least(workers)).collect()
    }
}

fn is_trained(graph: &LayerGraph, layer: &Layer) -> bool {
    let owner = layer.share.map_or(layer, |owner| graph.layer(owner));
    layer.kind.params().iter().any(|p| p.role == Role::Parameter) && !owner.frozen
}

/// The number of shards of the optimizer's work in a stage.
fn parts(plan: &Plan, stage: StageId) -> u64 {
    plan.sharding.map_or(1, |_| plan.stage_placement.of(stage).len().max(1) as u64)
}

fn fixed(stage: &StageSpec, optimizer: &OptimizerSpec, plan: &Plan) -> u64 {
    let parts = parts(plan, stage.stage);
    let (shards_gradients, gathers) =
        plan.sharding.map_or((false, false), |s| (s.shards_gradients(), s.shards_parameters()));
    let of_layer = |layer: &Layer| {
        let owner = layer.share.and_then(|owner| stage.owner(owner));
        let tied = owner.map_or(Vec::new(), |owner| layer.kind.tied_params(&owner.kind));
        let own = layer.kind.params().into_iter().filter(|p| !tied.contains(&p.name));
        let kept = if parts > 1 { stage.tied_params(layer) } else { Vec::new() };
        let bytes = |param: ParamSpec| {
            let (bytes, parts) =
                (param.bytes().unwrap_or(0), if kept.contains(&param.name) { 1 } else { parts });
            match (param.role, layer.frozen) {
                (Role::Parameter, false) => {
                    let gradient = if shards_gradients { bytes / parts } else { bytes };
                    let state = bytes.saturating_mul(optimizer.state_copies()) / parts;
                    let value = if gathers { bytes / parts } else { bytes };
                    value.saturating_add(gradient).saturating_add(state)
                }
                _ => bytes,
            }
        };
        let own = own.map(bytes).sum::<u64>().saturating_add(rounded(layer));
        own.saturating_add(gradients_of_use(stage, layer))
    };
    let own: u64 = stage.layers.iter().map(of_layer).sum();
    let tied_copies = stage.tied_copies.iter().map(|b| {
        let gradients = if b.owner.frozen { 0 } else { b.users.len() as u64 };
        tied_copy_bytes(stage, b).saturating_mul(1 + gradients)
    });
    own.saturating_add(tied_copies.sum())
}

/// The bytes of the gradients of the parameters that a layer uses, and another one of its stage
/// owns: each use has a gradient of its own.
fn gradients_of_use(stage: &StageSpec, layer: &Layer) -> u64 {
    let mut layers = stage.layers.iter();
    let owner = layer.share.and_then(|id| layers.find(|owner| owner.id == id));
    let Some(owner) = owner.filter(|owner| !owner.frozen) else { return 0 };
    let tied = layer.kind.tied_params(&owner.kind);
    let params = layer.kind.params().into_iter().filter(|param| tied.contains(&param.name));
    params.map(|param| param.bytes().unwrap_or(0)).sum()
}

/// The bytes of a stage's parameters that are gathered only while it works.
fn gathered(stage: &StageSpec, plan: &Plan) -> u64 {
    if parts(plan, stage.stage) < 2 || !plan.sharding.is_some_and(Sharding::shards_parameters) {
        return 0;
    }
    let buckets = buckets(stage, BucketBytes::default(), plan.sharding);
    buckets
        .iter()
        .filter(|bucket| bucket.sharded)
        .fold(0, |sum, bucket| sum.saturating_add(bucket.bytes()))
}

fn tied_copy_bytes(stage: &StageSpec, tied_copies: &crate::plan::TiedCopy) -> u64 {
    let shared = stage.shared(tied_copies);
    let params = tied_copies.owner.kind.params().into_iter().filter(|p| shared.contains(&p.name));
    params.map(|p| p.bytes().unwrap_or(0)).sum()
}
