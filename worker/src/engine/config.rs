//! The configuration of a stage, and its mode.

use crate::engine::error::PlanError;
use layerspec::{Layer, LayerId, ValueId};
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
    /// The values that come from outside, in the order in which [`crate::engine::Engine::forward`]
    /// takes them.
    pub inputs: Vec<StageInput>,
    /// The values that leave, in the order in which [`crate::engine::Engine::forward`] gives them.
    /// Each is made by a layer of this stage.
    pub outputs: Vec<ValueId>,
    /// Layers of other stages whose parameters layers here share.
    pub tied_copies: Vec<TiedCopy>,
    /// Layers here whose parameters layers of other stages share.
    pub tied_owners: Vec<TiedOwner>,
    /// The buckets in which gradients travel between replicas. Needed only if a tree sums them.
    pub buckets: Vec<Bucket>,
    /// This replica's shard of the sharded buckets, which it updates.
    pub shard_id: Option<ShardId>,
    /// Whether gradients leave with each microbatch and are not kept.
    pub shards_gradients: bool,
    /// Whether this replica keeps only its shard of the sharded parameters, and gathers the others
    /// for passes.
    pub shards_parameters: bool,
    /// The run's seed. Parameters and dropout depend only on it and on names.
    pub seed: u64,
    /// The device of the stage. Tensors from elsewhere are moved there on arrival.
    pub device: Device,
}

impl StageConfig {
    /// The layer with this id.
    pub(crate) fn layer(&self, id: LayerId) -> Result<&Layer, PlanError> {
        let layer = self.layers.iter().find(|layer| layer.id == id);
        layer
            .ok_or_else(|| PlanError::UnknownOwner { layer: format!("number {}", id.0), owner: id })
    }
}

/// A value that comes from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageInput {
    /// The value.
    pub value: ValueId,
    /// Whether its maker waits for its gradient.
    pub needs_grad: bool,
    /// Whether the gradients of this stage's uses may be summed here. That keeps the order of
    /// summing only if no term comes before them: in the last stage that uses the value.
    pub sum_here: bool,
}

/// Training or evaluation, as PyTorch means it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, batch norm updates its statistics, and tensors are saved for backward.
    Train,
    /// No random draws, no updated statistics, no saved tensors.
    Eval,
}

/// The settings of a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Which microbatch.
    pub key: MicrobatchKey,
    /// Which step of training; dropout depends on it.
    pub step: u64,
    /// Training or evaluation.
    pub mode: Mode,
    /// In training, whether the batch statistics of norms wait for
    /// [`crate::engine::Engine::reduce`] before they change running statistics.
    pub defer_statistics: bool,
    /// Whether to fail at the first number that is not finite: in inputs, parameters and outputs of
    /// layers. Costs time.
    pub check_finite: bool,
}

impl Pass {
    /// Whether running statistics do not change in this pass.
    pub(crate) fn defers_statistics(&self) -> bool {
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
    /// The target of the prediction.
    pub target: &'a Tensor,
    /// The loss function.
    pub loss: &'a LossSpec,
    /// The microbatch's share of the batch: samples here / samples in all.
    pub weight: f64,
}
