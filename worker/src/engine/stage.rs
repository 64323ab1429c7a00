//! The configuration of a stage, and its mode.

use super::own::CustomLayers;
use layerspec::{Layer, ValueId};
use pipeline::ids::MicrobatchKey;
use pipeline::loss::LossSpec;
use pipeline::plan::{TiedCopy, TiedOwner};
use pipeline::replicas::{Bucket, ShardId};
use tch::{Device, Tensor};

/// A stage: a contiguous run of a model's layers, and the values that cross its border.
#[derive(Debug, Clone)]
pub struct StageConfig {
    /// The stage's layers in file order.
    pub layers: Vec<Layer>,
    /// The values that come from outside, in the order in which [`super::Engine::forward`] takes them.
    pub inputs: Vec<StageInput>,
    /// The values that leave, in the order in which [`super::Engine::forward`] gives them.
    /// Each is made by a layer of this stage.
    pub outputs: Vec<ValueId>,
    /// Layers of other stages whose parameters layers here share.
    pub tied_copies: Vec<TiedCopy>,
    /// Layers here whose parameters layers of other stages share.
    pub tied_owners: Vec<TiedOwner>,
    /// How the gradients of its parameters travel between replicas; needed only where they are summed along a tree.
    pub buckets: Vec<Bucket>,
    /// Which part of the sharded ones is this replica's to update.
    pub shard_id: Option<ShardId>,
    /// Whether gradients leave with each microbatch, so that nothing is kept of them.
    pub shards_gradients: bool,
    /// Whether of its part of the sharded ones alone the parameters are kept, and gathered with the others' for passes.
    pub shards_parameters: bool,
    /// The run's seed: parameters and dropout depend on it and on names alone.
    pub seed: u64,
    /// The device of the stage. Tensors from elsewhere are moved there on arrival.
    pub device: Device,
    /// The layers that not every worker has.
    pub custom_layers: CustomLayers,
}

/// A value that comes from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageInput {
    /// The value.
    pub value: ValueId,
    /// Whether its maker waits for its gradient.
    pub needs_grad: bool,
    /// Whether the gradients of this stage's uses may be summed here. That keeps the order of
    /// summing only where no term comes before them, so in the last stage that uses the value.
    pub sum_here: bool,
}

/// Training or evaluation, as PyTorch means it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, batch norm learns its statistics, and what backward needs is kept.
    Train,
    /// Nothing random, nothing learned, nothing kept.
    Eval,
}

/// A forward pass to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Which microbatch.
    pub key: MicrobatchKey,
    /// Which step of training; dropout depends on it.
    pub step: u64,
    /// Training or evaluation.
    pub mode: Mode,
    /// In training, whether what norms see waits for [`super::Engine::reduce`] before running statistics take it.
    pub defer_statistics: bool,
}

impl Pass {
    /// Whether running statistics are left as they are.
    pub(super) fn defers_statistics(&self) -> bool {
        self.defer_statistics && self.mode == Mode::Train
    }
}

/// A loss to compute.
#[derive(Debug, Clone, Copy)]
pub struct LossInputs<'a> {
    /// Position in [`StageConfig::outputs`] of the output that the loss is about.
    pub output: usize,
    /// That output, as forward gave it.
    pub prediction: &'a Tensor,
    /// What it should be.
    pub target: &'a Tensor,
    /// How the two are compared.
    pub loss: &'a LossSpec,
    /// The microbatch's share of the batch: samples here / samples in all.
    pub weight: f64,
}
