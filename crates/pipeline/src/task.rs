//! The tasks of the compute thread, and their outcomes.
//!
//! Generic over the tensor type: a session fills in slot numbers, and the driver replaces them by
//! bytes.

use crate::determinism::Determinism;
use crate::ids::{MicrobatchKey, StageId};
use crate::initialization::Initialization;
use crate::kv_cache_step::KvCacheStep;
use crate::loss::LossSpec;
use crate::map_tensors::{by_stage, named, nested, shards};
use crate::mode::Mode;
use crate::norm::Square;
use crate::optimizer::OptimizerSpec;
use crate::replicas::{BucketBytes, Node, ShardId, Sharding, UniqueId};
use crate::round_outputs::LastPosition;
use crate::stage_spec::StageSpec;
use crate::tensor_meta::TensorMeta;
use crate::watch::{FiniteCheck, LayerHealth};
use crate::StateForm;
use layerspec::Layer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use crate::layer_times::{LayerTimes, Ports, SavedPorts};
pub use crate::task_error::TaskError;

/// One piece of work for the compute thread, which runs tasks in order.
#[derive(Clone, PartialEq, Debug)]
pub enum Task<T> {
    /// Build these stages, with parameters initialised from the seed.
    Build {
        /// The stages of this worker.
        stages: Vec<StageSpec>,
        /// What they share.
        settings: BuildSettings,
    },
    /// Use this optimizer, with fresh state.
    SetOptimizer(OptimizerSpec),
    /// One microbatch through one stage.
    Forward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        key: MicrobatchKey,
        /// The training step, which random draws depend on.
        step: u64,
        /// Whether backward will follow.
        mode: Mode,
        /// How the pass continues a sequence with cached keys and values.
        kv_cache: Option<KvCacheStep>,
        /// A tensor for each of the stage's inputs, in order.
        inputs: Vec<T>,
        /// The outputs of the stage to hand back, ascending.
        export: Vec<usize>,
        /// The output that is handed back as its last position only.
        last_position: Option<(usize, LastPosition)>,
        /// The loss, on the stage that computes it.
        loss: Option<LossTask<T>>,
        /// Keep the statistics of batch norms apart for [`Task::Reduce`], which applies them in the
        /// order of microbatches.
        defer_statistics: bool,
        /// Which numbers must be finite.
        finite: FiniteCheck,
    },
    /// The gradients of one microbatch through one stage.
    Backward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        key: MicrobatchKey,
        /// The gradients of each of the stage's outputs from outside, in summing order.
        grads: Vec<Vec<T>>,
        /// Whether [`Task::BackwardWeight`] computes the parameters' gradients later.
        input_only: bool,
        /// The place of the parameters' gradients in the sum, if they are summed along a tree.
        leaf: Option<TreeLeaf>,
    },
    /// The second half of a backward pass: the gradients of the parameters.
    BackwardWeight {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        key: MicrobatchKey,
        /// As for [`Task::Backward`].
        leaf: Option<TreeLeaf>,
    },
    /// Ends the sum of a round's gradients along a tree. Adds the sums over all microbatches to the
    /// accumulated gradients, which [`Task::OptimStep`] uses.
    Reduce {
        /// Which stage.
        stage: StageId,
        /// The batch of the round, whose statistics the batch norms take over.
        batch: u64,
        /// For every bucket and replica, the slices of that replica's shard
        /// ([`TensorHead::Reduced`](crate::message::TensorHead)). For a sharded bucket, only this
        /// replica's slices. Empty if the stage has one replica, whose own sums are complete.
        buckets: Vec<Vec<Vec<T>>>,
        /// The statistics of the batch norms of each replica, in any order. Empty if the stage has
        /// one replica.
        statistics: Vec<Vec<T>>,
    },
    /// As [`Task::Reduce`], by a collective operation: every replica of the stage has this task,
    /// and their gradients are summed. Waits for the other replicas. Fails if it is
    /// [interrupted](crate::effect::StageEffect::Interrupt).
    AllReduce {
        /// Which stage.
        stage: StageId,
        /// The batch of the round, whose statistics are learnt.
        batch: u64,
        /// The statistics of the batch norms of each other replica, in any order.
        statistics: Vec<Vec<T>>,
    },
    /// Make an NCCL id for a communicator of each of these stages. Answered by
    /// [`Outcome::UniqueIds`].
    MakeIds {
        /// Which stages.
        stages: Vec<StageId>,
    },
    /// Make the communicators among the replicas of stages, in this order, and replace existing
    /// ones. Every replica has this task, and waits for the others as in [`Task::AllReduce`].
    Communicate {
        /// For each stage, the shard of this replica and the id by which replicas find each other.
        stages: Vec<(StageId, ShardId, UniqueId)>,
    },
    /// Hand out the gradients of the parameters that other stages own. Answered by
    /// [`Outcome::Tied`].
    TiedGrads {
        /// Which stage.
        stage: StageId,
    },
    /// Add the gradients of tied parameters from other stages. Compute the squared norm of every
    /// parameter's gradient, or of this worker's part of it. Answered by [`Outcome::Norms`].
    GradNorm {
        /// Which stage.
        stage: StageId,
        /// For every stage that uses parameters of this one, descending, the result of its
        /// [`Task::TiedGrads`].
        tied: Vec<(StageId, Vec<T>)>,
    },
    /// Apply the gradients of one stage to its parameters and clear them. Answered by
    /// [`Outcome::Tied`] with the new values of tied parameters that other stages copy. Fails if
    /// any task since the last [`Task::Discard`] failed, because it may have been submitted before
    /// that failure was known, and the parameters must not change. Of sharded buckets only this
    /// replica's part is updated, and handed out as [`EarlyOutput::Updated`].
    OptimStep {
        /// Which stage.
        stage: StageId,
        /// How the gradients change the parameters.
        update: Update,
        /// As for [`Task::GradNorm`]. Empty if that task ran before.
        tied: Vec<(StageId, Vec<T>)>,
        /// Whether to hand out the health of the layers, as [`EarlyOutput::Health`].
        health: bool,
    },
    /// Load the parts of the parameters that the other replicas have updated or share.
    AllGather {
        /// Which stage.
        stage: StageId,
        /// For every bucket and replica, the slices of that replica's shard. Empty for this
        /// replica, and for buckets that are not sharded.
        buckets: Vec<Vec<Vec<T>>>,
    },
    /// Hand out this replica's part of the parameters, as [`EarlyOutput::Updated`].
    EmitShard {
        /// Which stage.
        stage: StageId,
    },
    /// Free the other replicas' parts of the parameters.
    Reshard {
        /// Which stage.
        stage: StageId,
    },
    /// Load the new values of the parameters that other stages own, and clear their gradients.
    UpdateTied {
        /// Which stage.
        stage: StageId,
        /// For every stage that owns copied parameters, ascending, this stage's part of the result
        /// of its [`Task::OptimStep`].
        tied: Vec<(StageId, Vec<T>)>,
    },
    /// Measure how long layers take on this worker, apart from the stages.
    Measure {
        /// The layers, each with inputs.
        probes: Vec<LayerProbe>,
    },
    /// Discard what is stored of a batch for its backward pass.
    Discard {
        /// Which batch.
        batch: u64,
        /// Whether to discard all gradients too, because the step is void.
        gradients: bool,
    },
    /// Hand out state, under the names of [`StateName`](crate::StateName).
    Snapshot {
        /// The stages whose parameters and buffers are handed out.
        parameters: Vec<StageId>,
        /// The stages whose optimizer state is handed out. For a stage that is not among
        /// `parameters`, only the state that this replica alone holds.
        optimizer: Vec<StageId>,
        /// In which form.
        form: StateForm,
    },
    /// Compute a SHA-256 of each trained parameter of each stage. Answered by [`Outcome::Digests`].
    Digest,
    /// Replace parameters, buffers and optimizer state.
    Load {
        /// Tensors by name.
        tensors: Vec<(String, T)>,
        /// What they are.
        content: LoadContent,
    },
    /// Replace the files that layers are built from.
    Files {
        /// Bytes by SHA-256, in hexadecimal digits.
        files: Vec<(String, T)>,
    },
}

/// What [`Task::Load`] loads.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LoadContent {
    /// Some parameters, buffers and tensors of optimizer state, or slices of them
    /// (`slice/0.weight[START]`, `optimizer/0.weight.exp_avg[START]`, see
    /// [`StateName`](crate::StateName)). Others stay as they are. Optimizer state that a parameter
    /// does not have yet begins with zeros.
    Part,
    /// Descriptions of some parameters and buffers, each as a tensor of bytes. The worker reads
    /// the numbers from its own files.
    WeightSources,
    /// All parameters and buffers, and optimizer state, as [`Task::Snapshot`] returns it. Optimizer
    /// state that is missing starts fresh.
    WholeState,
}

/// The place of a microbatch's gradients in the sum over all microbatches.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TreeLeaf {
    /// The number of microbatches of the batch.
    pub microbatches: u32,
    /// Set if the sum so far is handed out with this microbatch, as [`EarlyOutput`], as soon as a
    /// bucket is complete. The value is the number of replicas.
    pub emit_to_replicas: Option<u16>,
    /// Whether it is the last microbatch of this replica.
    pub last: bool,
    /// Whether to hand out the statistics of batch norms.
    pub emits_statistics: bool,
}

/// A result that the compute thread hands out during a task.
#[derive(Clone, PartialEq, Debug)]
pub enum EarlyOutput<T> {
    /// The sums of a bucket over this replica's microbatches.
    Sums {
        /// Which stage.
        stage: StageId,
        /// Which bucket.
        bucket: u32,
        /// The slices of each replica's shard, for each node.
        shards: Vec<Vec<(Node, Vec<T>)>>,
    },
    /// The values of this replica's shard of a bucket, updated or shared.
    Updated {
        /// Which stage.
        stage: StageId,
        /// Which bucket.
        bucket: u32,
        /// One flat tensor for each slice.
        slices: Vec<T>,
    },
    /// The statistics of the stage's batch norms, with the last microbatch's forward pass.
    Statistics {
        /// Which stage.
        stage: StageId,
        /// Tensors as the engine reads them.
        tensors: Vec<T>,
    },
    /// The health of a stage's layers in an optimizer step.
    Health(Vec<LayerHealth>),
}

/// How gradients change parameters in one step.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Update {
    /// The learning rate of this step.
    pub lr: f64,
    /// The factor of every gradient before it is used: 1, except for gradients accumulated over
    /// batches of uneven size.
    pub scale: f64,
    /// The clipping factor applied after that: 1 if the norm over all stages is not above the
    /// limit.
    pub clip: f64,
    /// Only clear the gradients, because those of some stage are not finite.
    pub skip: bool,
}

/// A layer to measure, with its inputs for one microbatch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayerProbe {
    /// The layer.
    pub layer: Layer,
    /// The dtype and shape of every input.
    pub inputs: Vec<TensorMeta>,
    /// Whether to compute the inputs' gradients.
    pub input_grads: bool,
}

/// The loss that follows a forward pass.
#[derive(Clone, PartialEq, Debug)]
pub struct LossTask<T> {
    /// The output of the stage that it is computed on.
    pub output: usize,
    /// The function.
    pub spec: LossSpec,
    /// The microbatch's share of the batch's samples.
    pub weight: f64,
    /// The target.
    pub target: T,
    /// Whether the output is exported as the likeliest class of each target.
    pub likeliest: bool,
}

/// The result of a [`Task`].
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome<T> {
    /// Done, with nothing to hand back.
    Done,
    /// After [`Task::Forward`].
    Forward {
        /// The exported outputs, in the order asked for.
        outputs: Vec<T>,
        /// The weighted loss, if requested.
        loss: Option<f32>,
    },
    /// After [`Task::Backward`].
    Backward {
        /// The gradients of each of the stage's inputs: none if it needs none, one if they are
        /// summed here, else one for each use.
        grads: Vec<Vec<T>>,
    },
    /// After [`Task::TiedGrads`]: for every owning stage, ascending, the gradients of each use of
    /// each parameter. After [`Task::OptimStep`]: for every stage with copies, descending, the new
    /// values.
    Tied {
        /// Tensors by the stage at the other end, in the order of [`crate::plan::TiedCopy`].
        tensors: Vec<(StageId, Vec<T>)>,
    },
    /// After [`Task::GradNorm`].
    Norms {
        /// The sums of squares of each parameter's gradient.
        squares: Vec<Square>,
    },
    /// After [`Task::Measure`], one for each probe.
    Measured {
        /// The times of each layer.
        times: Vec<LayerTimes>,
    },
    /// After [`Task::Digest`].
    Digests {
        /// By stage and name.
        digests: Vec<(StageId, String, [u8; 32])>,
    },
    /// After [`Task::MakeIds`].
    UniqueIds {
        /// By stage.
        ids: Vec<(StageId, UniqueId)>,
    },
    /// After [`Task::Snapshot`].
    State {
        /// The name, dtype and shape of each whole tensor, shard or hash.
        heads: Vec<(String, TensorMeta)>,
        /// Tensors by name, in slices if they were asked for.
        tensors: Vec<(String, T)>,
    },
}

/// The settings that all stages of a run share.
#[derive(Clone, PartialEq, Debug)]
pub struct BuildSettings {
    /// The sizes of the buckets in which gradients are handed out.
    pub buckets: BucketBytes,
    /// The state that replicas shard, if any.
    pub sharding: Option<Sharding>,
    /// This worker's shard of each stage that is sharded.
    pub shard_ids: BTreeMap<StageId, ShardId>,
    /// The run's seed.
    pub seed: u64,
    /// Whether GPUs use deterministic kernels only.
    pub determinism: Determinism,
    /// When the initial values of parameters are drawn.
    pub initialization: Initialization,
}

impl<T> Task<T> {
    /// Whether the task waits for the same task on other workers.
    pub fn waits_for_others(&self) -> bool {
        matches!(self, Task::AllReduce { .. } | Task::Communicate { .. })
    }

    /// The same task over other tensors. Fails with the first error of `f`.
    pub fn try_map<U, E>(self, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Task<U>, E> {
        Ok(match self {
            Task::Build { stages, settings } => Task::Build { stages, settings },
            Task::SetOptimizer(spec) => Task::SetOptimizer(spec),
            Task::Forward {
                stage,
                key,
                step,
                mode,
                kv_cache,
                inputs,
                export,
                last_position,
                loss,
                defer_statistics,
                finite,
            } => Task::Forward {
                stage,
                key,
                step,
                mode,
                kv_cache,
                inputs: inputs.into_iter().map(&mut f).collect::<Result<_, E>>()?,
                export,
                last_position,
                loss: match loss {
                    Some(LossTask { output, spec, weight, target, likeliest }) => {
                        Some(LossTask { output, spec, weight, target: f(target)?, likeliest })
                    }
                    None => None,
                },
                defer_statistics,
                finite,
            },
            Task::Backward { stage, key, grads, input_only, leaf } => {
                Task::Backward { stage, key, grads: nested(grads, f)?, input_only, leaf }
            }
            Task::BackwardWeight { stage, key, leaf } => Task::BackwardWeight { stage, key, leaf },
            Task::Reduce { stage, batch, buckets, statistics } => Task::Reduce {
                stage,
                batch,
                buckets: shards(buckets, &mut f)?,
                statistics: nested(statistics, f)?,
            },
            Task::AllReduce { stage, batch, statistics } => {
                Task::AllReduce { stage, batch, statistics: nested(statistics, f)? }
            }
            Task::MakeIds { stages } => Task::MakeIds { stages },
            Task::Communicate { stages } => Task::Communicate { stages },
            Task::TiedGrads { stage } => Task::TiedGrads { stage },
            Task::GradNorm { stage, tied } => Task::GradNorm { stage, tied: by_stage(tied, f)? },
            Task::OptimStep { stage, update, tied, health } => {
                Task::OptimStep { stage, update, tied: by_stage(tied, f)?, health }
            }
            Task::AllGather { stage, buckets } => {
                Task::AllGather { stage, buckets: shards(buckets, f)? }
            }
            Task::UpdateTied { stage, tied } => {
                Task::UpdateTied { stage, tied: by_stage(tied, f)? }
            }
            Task::EmitShard { stage } => Task::EmitShard { stage },
            Task::Reshard { stage } => Task::Reshard { stage },
            Task::Measure { probes } => Task::Measure { probes },
            Task::Discard { batch, gradients } => Task::Discard { batch, gradients },
            Task::Snapshot { parameters, optimizer, form } => {
                Task::Snapshot { parameters, optimizer, form }
            }
            Task::Digest => Task::Digest,
            Task::Load { tensors, content } => Task::Load { tensors: named(tensors, f)?, content },
            Task::Files { files } => Task::Files { files: named(files, f)? },
        })
    }
}

impl<T> Outcome<T> {
    /// The same outcome over other tensors.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Outcome<U> {
        let sure = |t| Ok::<U, std::convert::Infallible>(f(t));
        let Ok(outcome) = self.try_map(sure);
        outcome
    }

    /// The same outcome over other tensors. Fails with the first error of `f`.
    pub fn try_map<U, E>(self, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Outcome<U>, E> {
        Ok(match self {
            Outcome::Done => Outcome::Done,
            Outcome::Forward { outputs, loss } => Outcome::Forward {
                outputs: outputs.into_iter().map(&mut f).collect::<Result<_, E>>()?,
                loss,
            },
            Outcome::Backward { grads } => Outcome::Backward { grads: nested(grads, f)? },
            Outcome::Tied { tensors } => Outcome::Tied { tensors: by_stage(tensors, f)? },
            Outcome::Norms { squares } => Outcome::Norms { squares },
            Outcome::Measured { times } => Outcome::Measured { times },
            Outcome::Digests { digests } => Outcome::Digests { digests },
            Outcome::UniqueIds { ids } => Outcome::UniqueIds { ids },
            Outcome::State { heads, tensors } => {
                Outcome::State { heads, tensors: named(tensors, f)? }
            }
        })
    }

    /// Every tensor in it, to free a result that is not needed any more.
    pub fn into_tensors(self) -> Vec<T> {
        match self {
            Outcome::Done
            | Outcome::Norms { .. }
            | Outcome::Measured { .. }
            | Outcome::Digests { .. }
            | Outcome::UniqueIds { .. } => Vec::new(),
            Outcome::Tied { tensors } => {
                tensors.into_iter().flat_map(|(_, tensors)| tensors).collect()
            }
            Outcome::Forward { outputs, .. } => outputs,
            Outcome::Backward { grads } => grads.into_iter().flatten().collect(),
            Outcome::State { tensors, .. } => tensors.into_iter().map(|(_, t)| t).collect(),
        }
    }
}

impl<T> EarlyOutput<T> {
    /// The same over other tensors.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> EarlyOutput<U> {
        match self {
            EarlyOutput::Sums { stage, bucket, shards } => {
                let mut slices = |list: Vec<T>| list.into_iter().map(&mut f).collect();
                let mut shard = |sums: Vec<(Node, Vec<T>)>| {
                    sums.into_iter().map(|(n, s)| (n, slices(s))).collect()
                };
                EarlyOutput::Sums {
                    stage,
                    bucket,
                    shards: shards.into_iter().map(&mut shard).collect(),
                }
            }
            EarlyOutput::Updated { stage, bucket, slices } => {
                EarlyOutput::Updated { stage, bucket, slices: slices.into_iter().map(f).collect() }
            }
            EarlyOutput::Statistics { stage, tensors } => {
                EarlyOutput::Statistics { stage, tensors: tensors.into_iter().map(f).collect() }
            }
            EarlyOutput::Health(layers) => EarlyOutput::Health(layers),
        }
    }

    /// Every tensor in it.
    pub fn into_tensors(self) -> Vec<T> {
        match self {
            EarlyOutput::Sums { shards, .. } => {
                shards.into_iter().flatten().flat_map(|(_, slices)| slices).collect()
            }
            EarlyOutput::Updated { slices: tensors, .. }
            | EarlyOutput::Statistics { tensors, .. } => tensors,
            EarlyOutput::Health(_) => Vec::new(),
        }
    }
}
