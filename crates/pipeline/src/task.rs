//! What the compute thread is asked to do, and what it answers.
//!
//! Generic over the tensor: a session fills in slot numbers, the driver replaces them by bytes.

use crate::cached::Cached;
use crate::ids::{MicrobatchKey, StageId};
use crate::loss::LossSpec;
use crate::mode::Mode;
use crate::norm::Square;
use crate::optimizer::OptimizerSpec;
use crate::replicas::{BucketBytes, Node, ShardId, Sharding, UniqueId};
use crate::stage_spec::StageSpec;
use crate::tensor_meta::TensorMeta;
use crate::watch::{Finite, LayerHealth};
use layerspec::Layer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One piece of work for the compute thread, which runs them in the order given.
#[derive(Clone, PartialEq, Debug)]
pub enum Task<T> {
    /// Make these stages, with parameters initialised from the seed.
    Build {
        /// The stages of this worker.
        stages: Vec<StageSpec>,
        /// How large the buckets are in which their gradients are handed out.
        buckets: BucketBytes,
        /// What their replicas share out.
        sharding: Option<Sharding>,
        /// The part of each stage with replicas that share something out which is this worker's.
        shard_ids: BTreeMap<StageId, ShardId>,
        /// The run's seed.
        seed: u64,
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
        /// How it goes on with the pass before.
        cached: Option<Cached>,
        /// A tensor for each of the stage's inputs, in order.
        inputs: Vec<T>,
        /// Which of the stage's outputs to hand back, ascending.
        export: Vec<usize>,
        /// The loss, on the stage that computes it.
        loss: Option<LossTask<T>>,
        /// Keep what batch norms see apart, for [`Task::Reduce`], which puts it in the order of microbatches.
        apart: bool,
        /// Where a number that is not finite is an error.
        finite: Finite,
    },
    /// The gradients of one microbatch through one stage.
    Backward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        key: MicrobatchKey,
        /// For each of the stage's outputs its gradients from outside, in the order in which they are summed.
        grads: Vec<Vec<T>>,
        /// Whether the parameters' gradients are left for [`Task::BackwardWeight`].
        input_only: bool,
        /// How the parameters' gradients are summed, where that is along a tree.
        branch: Option<Branch>,
    },
    /// The half of a backward pass that was left: the gradients of the parameters.
    BackwardWeight {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        key: MicrobatchKey,
        /// As for [`Task::Backward`].
        branch: Option<Branch>,
    },
    /// Ends the summing of a round's gradients along a tree: the sums over all microbatches are added to the gradients
    /// so far, which [`Task::OptimStep`] uses.
    Reduce {
        /// Which stage.
        stage: StageId,
        /// The batch of the round, whose statistics are learnt.
        batch: u64,
        /// For every bucket and replica the slices of that replica's shard ([`Head::Reduced`](crate::message::Head)), of a
        /// sharded bucket those of this one's alone; no buckets where the stage has one replica, whose own sums are whole.
        buckets: Vec<Vec<Vec<T>>>,
        /// What the batch norms of each replica saw, in any order; nothing where the stage has one replica.
        statistics: Vec<Vec<T>>,
    },
    /// The same by a collective operation among the stage's replicas, of which each has this task: what the microbatches of
    /// each came to is summed. It waits for the others, and fails where it is
    /// [interrupted](crate::effect::StageEffect::Interrupt).
    AllReduce {
        /// Which stage.
        stage: StageId,
        /// The batch of the round, whose statistics are learnt.
        batch: u64,
        /// What the batch norms of each other replica saw, in any order.
        statistics: Vec<Vec<T>>,
    },
    /// Make an id for a communicator of each of these stages; answered by [`Outcome::UniqueIds`].
    MakeIds {
        /// Which stages.
        stages: Vec<StageId>,
    },
    /// Make the communicators among the replicas of stages, which all do, in this order, in place of any there are. It waits
    /// for the others as [`Task::AllReduce`] does.
    Communicate {
        /// For each stage which of its replicas this is, and by what they find each other.
        stages: Vec<(StageId, ShardId, UniqueId)>,
    },
    /// Hand out the gradients of the parameters that other stages own; answered by [`Outcome::Tied`].
    TiedGrads {
        /// Which stage.
        stage: StageId,
    },
    /// Add the gradients of tied parameters that came from other stages, and give the squared norm of every
    /// parameter's gradient, or of the part of it that is here; answered by [`Outcome::Norms`].
    GradNorm {
        /// Which stage.
        stage: StageId,
        /// For every stage that uses parameters of this one, descending, what its [`Task::TiedGrads`] gave.
        tied: Vec<(StageId, Vec<T>)>,
    },
    /// Apply the gradients of one stage to its parameters and clear them; answered by [`Outcome::Tied`] with the
    /// new values of the parameters that it lends. It fails where any task since the last [`Task::Discard`] has: it may
    /// have been given before that was known, and the parameters must stay as they were. Of sharded buckets only this
    /// replica's part is updated, and handed out as [`HandedOut::Updated`].
    OptimStep {
        /// Which stage.
        stage: StageId,
        /// With what.
        update: Update,
        /// As for [`Task::GradNorm`]; empty where that has been.
        tied: Vec<(StageId, Vec<T>)>,
        /// Hand out how the layers fare, as [`HandedOut::Health`].
        health: bool,
    },
    /// Take what the other replicas have updated, or share.
    AllGather {
        /// Which stage.
        stage: StageId,
        /// For every bucket and replica the slices of that replica's shard; none of this one's, and of buckets that are not
        /// sharded.
        buckets: Vec<Vec<Vec<T>>>,
    },
    /// Hand out this replica's part of the parameters, as [`HandedOut::Updated`].
    Share {
        /// Which stage.
        stage: StageId,
    },
    /// Let go of the other replicas' parts of the parameters.
    Reshard {
        /// Which stage.
        stage: StageId,
    },
    /// Take the new values of the parameters that other stages own, and clear their gradients.
    UpdateTied {
        /// Which stage.
        stage: StageId,
        /// For every stage that this one borrows from, ascending, its part of what that one's
        /// [`Task::OptimStep`] gave.
        tied: Vec<(StageId, Vec<T>)>,
    },
    /// Find out how long layers take on this worker, apart from the stages.
    Measure {
        /// The layers, each with inputs.
        probes: Vec<LayerProbe>,
    },
    /// Forget what is kept of a batch for backward.
    Discard {
        /// Which batch.
        batch: u64,
        /// Forget all gradients too: the step is void.
        gradients: bool,
    },
    /// Hand out state, under the names of [`StateName`](crate::StateName).
    Snapshot {
        /// The stages of which parameters and buffers are handed out.
        parameters: Vec<StageId>,
        /// The stages of which it is what the optimizer keeps; of those that are not among the others, only what this replica
        /// keeps alone.
        optimizer: Vec<StageId>,
    },
    /// Find a SHA-256 of each trained parameter of each stage; answered by [`Outcome::Digests`].
    Digest,
    /// Replace parameters and buffers.
    Load {
        /// Tensors by name.
        tensors: Vec<(String, T)>,
        /// What [`Task::Snapshot`] gave with the optimizer's state, which is replaced too.
        optimizer: bool,
    },
    /// Take the files that layers are made from, instead of those taken before.
    Files {
        /// Bytes by SHA-256, in hexadecimal digits.
        files: Vec<(String, T)>,
    },
}

/// Where a microbatch's gradients go in the sum over all microbatches.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Branch {
    /// How many microbatches the batch has.
    pub microbatches: u32,
    /// Set where what is summed so far leaves with this microbatch: it is handed out as [`HandedOut`], for so many
    /// replicas, as soon as a bucket is complete.
    pub hand_out: Option<u16>,
    /// Whether it is the last one of this replica's.
    pub last: bool,
    /// Whether it hands out what batch norms saw.
    pub tells: bool,
}

/// What the compute thread hands out while it is at work.
#[derive(Clone, PartialEq, Debug)]
pub enum HandedOut<T> {
    /// The sums of a bucket, as far as this replica's microbatches go.
    Sums {
        /// Which stage.
        stage: StageId,
        /// Which bucket.
        bucket: u32,
        /// For each replica the slices of its shard, for each node.
        shards: Vec<Vec<(Node, Vec<T>)>>,
    },
    /// The values of this replica's shard of a bucket, which it has updated or shares.
    Updated {
        /// Which stage.
        stage: StageId,
        /// Which bucket.
        bucket: u32,
        /// One flat tensor for each slice.
        slices: Vec<T>,
    },
    /// What the batch norms of the stage saw, with the last microbatch's forward pass.
    Statistics {
        /// Which stage.
        stage: StageId,
        /// Tensors as the engine reads them.
        tensors: Vec<T>,
    },
    /// How the layers of a stage fared in an optimizer step.
    Health(Vec<LayerHealth>),
}

/// How gradients change parameters in one step.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Update {
    /// The learning rate of this step.
    pub lr: f64,
    /// What every gradient is multiplied by before it is used: 1 but for gradients gathered over batches of uneven size.
    pub scale: f64,
    /// By what the gradients are shortened after that: 1 where their norm over all stages is not above the limit.
    pub clip: f64,
    /// Only clear the gradients: those of some stage are no finite numbers.
    pub skip: bool,
}

/// A layer to be measured, with the inputs that it gets for one microbatch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayerProbe {
    /// The layer.
    pub layer: Layer,
    /// The type and sizes of every input.
    pub inputs: Vec<TensorMeta>,
    /// Whether the inputs' gradients are wanted.
    pub input_grads: bool,
}

/// What a layer takes on one worker for one microbatch.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LayerTimes {
    /// Nanoseconds of its forward pass.
    pub forward: u64,
    /// Nanoseconds of its backward pass, both halves at once.
    pub backward: u64,
    /// Nanoseconds of the half for its inputs.
    pub backward_input: u64,
    /// Nanoseconds of the half for its parameters.
    pub backward_weight: u64,
    /// Nanoseconds of an optimizer step over its parameters.
    pub optim_step: u64,
    /// Bytes kept from forward to backward.
    pub held: u64,
    /// Bytes kept from the one half of backward to the other.
    pub held_between: u64,
}

/// An hour in nanoseconds, and as many bytes: sums of such numbers never overflow.
const MOST: u64 = 3_600_000_000_000;

impl LayerTimes {
    /// The same within what can be: it comes from another machine, and is calculated with.
    pub(crate) fn bounded(&self) -> Self {
        LayerTimes {
            forward: self.forward.min(MOST),
            backward: self.backward.min(MOST),
            backward_input: self.backward_input.min(MOST),
            backward_weight: self.backward_weight.min(MOST),
            optim_step: self.optim_step.min(MOST),
            held: self.held.min(MOST),
            held_between: self.held_between.min(MOST),
        }
    }
}

/// The loss that follows a forward pass.
#[derive(Clone, PartialEq, Debug)]
pub struct LossTask<T> {
    /// Which of the stage's outputs it is computed on.
    pub output: usize,
    /// The function.
    pub spec: LossSpec,
    /// The microbatch's share of the batch's samples.
    pub weight: f64,
    /// What the output should have been.
    pub target: T,
}

/// What a [`Task`] leaves.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome<T> {
    /// Done, with nothing to hand back.
    Done,
    /// After [`Task::Forward`].
    Forward {
        /// The exported outputs, in the order asked for.
        outputs: Vec<T>,
        /// The weighted loss, where one was asked for.
        loss: Option<f32>,
    },
    /// After [`Task::Backward`].
    Backward {
        /// For each of the stage's inputs its gradients: none where it needs none, one where they are
        /// summed here, else one a use.
        grads: Vec<Vec<T>>,
    },
    /// After [`Task::TiedGrads`]: for every stage that it borrows from, ascending, the gradients of each use of each
    /// parameter. After [`Task::OptimStep`]: for every stage that it lends to, descending, the new values.
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
        /// What each layer takes.
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
        /// Tensors by name.
        tensors: Vec<(String, T)>,
    },
}

impl<T> Task<T> {
    /// Whether it goes on for as long as other workers have not come as far.
    pub fn waits_for_others(&self) -> bool {
        matches!(self, Task::AllReduce { .. } | Task::Communicate { .. })
    }

    /// The same task over other tensors; the first that cannot be replaced ends it.
    pub fn try_map<U, E>(self, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Task<U>, E> {
        Ok(match self {
            Task::Build { stages, buckets, sharding, shard_ids, seed } => {
                Task::Build { stages, buckets, sharding, shard_ids, seed }
            }
            Task::SetOptimizer(spec) => Task::SetOptimizer(spec),
            Task::Forward { stage, key, step, mode, cached, inputs, export, loss, apart, finite } => Task::Forward {
                stage,
                key,
                step,
                mode,
                cached,
                inputs: inputs.into_iter().map(&mut f).collect::<Result<_, E>>()?,
                export,
                loss: match loss {
                    Some(LossTask { output, spec, weight, target }) => {
                        Some(LossTask { output, spec, weight, target: f(target)? })
                    }
                    None => None,
                },
                apart,
                finite,
            },
            Task::Backward { stage, key, grads, input_only, branch } => {
                Task::Backward { stage, key, grads: nested(grads, f)?, input_only, branch }
            }
            Task::BackwardWeight { stage, key, branch } => Task::BackwardWeight { stage, key, branch },
            Task::Reduce { stage, batch, buckets, statistics } => {
                Task::Reduce { stage, batch, buckets: shards(buckets, &mut f)?, statistics: nested(statistics, f)? }
            }
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
            Task::AllGather { stage, buckets } => Task::AllGather { stage, buckets: shards(buckets, f)? },
            Task::UpdateTied { stage, tied } => Task::UpdateTied { stage, tied: by_stage(tied, f)? },
            Task::Share { stage } => Task::Share { stage },
            Task::Reshard { stage } => Task::Reshard { stage },
            Task::Measure { probes } => Task::Measure { probes },
            Task::Discard { batch, gradients } => Task::Discard { batch, gradients },
            Task::Snapshot { parameters, optimizer } => Task::Snapshot { parameters, optimizer },
            Task::Digest => Task::Digest,
            Task::Load { tensors, optimizer } => Task::Load { tensors: named(tensors, f)?, optimizer },
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

    /// The same outcome over other tensors; the first that cannot be replaced ends it.
    pub fn try_map<U, E>(self, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Outcome<U>, E> {
        Ok(match self {
            Outcome::Done => Outcome::Done,
            Outcome::Forward { outputs, loss } => {
                Outcome::Forward { outputs: outputs.into_iter().map(&mut f).collect::<Result<_, E>>()?, loss }
            }
            Outcome::Backward { grads } => Outcome::Backward { grads: nested(grads, f)? },
            Outcome::Tied { tensors } => Outcome::Tied { tensors: by_stage(tensors, f)? },
            Outcome::Norms { squares } => Outcome::Norms { squares },
            Outcome::Measured { times } => Outcome::Measured { times },
            Outcome::Digests { digests } => Outcome::Digests { digests },
            Outcome::UniqueIds { ids } => Outcome::UniqueIds { ids },
            Outcome::State { tensors } => Outcome::State { tensors: named(tensors, f)? },
        })
    }

    /// Every tensor in it, for letting go of a result that nobody wants any more.
    pub fn into_tensors(self) -> Vec<T> {
        match self {
            Outcome::Done
            | Outcome::Norms { .. }
            | Outcome::Measured { .. }
            | Outcome::Digests { .. }
            | Outcome::UniqueIds { .. } => Vec::new(),
            Outcome::Tied { tensors } => tensors.into_iter().flat_map(|(_, tensors)| tensors).collect(),
            Outcome::Forward { outputs, .. } => outputs,
            Outcome::Backward { grads } => grads.into_iter().flatten().collect(),
            Outcome::State { tensors } => tensors.into_iter().map(|(_, t)| t).collect(),
        }
    }
}

impl<T> HandedOut<T> {
    /// The same over other tensors.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> HandedOut<U> {
        match self {
            HandedOut::Sums { stage, bucket, shards } => {
                let mut slices = |list: Vec<T>| list.into_iter().map(&mut f).collect();
                let mut shard = |sums: Vec<(Node, Vec<T>)>| sums.into_iter().map(|(n, s)| (n, slices(s))).collect();
                HandedOut::Sums { stage, bucket, shards: shards.into_iter().map(&mut shard).collect() }
            }
            HandedOut::Updated { stage, bucket, slices } => {
                HandedOut::Updated { stage, bucket, slices: slices.into_iter().map(f).collect() }
            }
            HandedOut::Statistics { stage, tensors } => {
                HandedOut::Statistics { stage, tensors: tensors.into_iter().map(f).collect() }
            }
            HandedOut::Health(layers) => HandedOut::Health(layers),
        }
    }

    /// Every tensor in it.
    pub fn into_tensors(self) -> Vec<T> {
        match self {
            HandedOut::Sums { shards, .. } => shards.into_iter().flatten().flat_map(|(_, slices)| slices).collect(),
            HandedOut::Updated { slices: tensors, .. } | HandedOut::Statistics { tensors, .. } => tensors,
            HandedOut::Health(_) => Vec::new(),
        }
    }
}

fn shards<T, U, E>(buckets: Vec<Vec<Vec<T>>>, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Vec<Vec<Vec<U>>>, E> {
    buckets.into_iter().map(|shards| nested(shards, &mut f)).collect()
}

fn nested<T, U, E>(lists: Vec<Vec<T>>, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Vec<Vec<U>>, E> {
    lists.into_iter().map(|list| list.into_iter().map(&mut f).collect()).collect()
}

fn by_stage<T, U, E>(
    tensors: Vec<(StageId, Vec<T>)>,
    mut f: impl FnMut(T) -> Result<U, E>,
) -> Result<Vec<(StageId, Vec<U>)>, E> {
    let mut each = |list: Vec<T>| list.into_iter().map(&mut f).collect::<Result<_, E>>();
    tensors.into_iter().map(|(stage, list)| Ok((stage, each(list)?))).collect()
}

fn named<T, U, E>(tensors: Vec<(String, T)>, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Vec<(String, U)>, E> {
    tensors.into_iter().map(|(name, t)| Ok((name, f(t)?))).collect()
}
