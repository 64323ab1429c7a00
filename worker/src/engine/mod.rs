//! A stage at work: its layers, parameters, gradients and optimizer. Synchronous and without any
//! network; the compute thread owns it and calls it.
//!
//! Its results do not depend on the cut. Every layer runs on detached inputs and goes back by
//! itself, whether or not its neighbour is in the same stage; whatever passes between layers has
//! one layout; and sums are taken in one order:
//!
//! - the gradient of a value: the loss's, the caller's, then its uses by descending layer and port;
//! - the gradient of a parameter: for each layer that uses it the microbatches in the order of their backward passes,
//!   and at the step the layers, descending. The products that make a weight's gradient add straight to the sum. Or each
//!   microbatch's is made by itself and they are summed along a tree, which replicas of the stage can share
//!   ([`Engine::backward_into_tree`]).

mod all_reduce;
mod backward;
mod branch;
mod call;
mod error;
mod forward;
mod gradient;
mod health;
mod held;
mod layer;
mod layout;
mod leaves;
mod loss;
mod measure;
mod memory;
mod modules;
mod optimizer;
mod own;
mod params;
mod reduce;
mod shards;
mod spare;
mod stage;
mod state;
mod statistics;
mod step;
mod sum;
mod tied;
mod weights;

#[cfg(test)]
mod tests;

pub use all_reduce::AllReduce;
pub use branch::{EmitFn, TreeTarget};
use error::in_layer;
pub use error::{EngineError, LayerPhase};
pub use held::SavedBytes;
pub use measure::measure;
pub use own::{CustomLayer, CustomLayers, ForwardContext};
pub use stage::{LossInputs, Mode, Pass, StageConfig, StageInput};
pub use tied::TensorsByStage;

use branch::GradientTrees;
use forward::SavedMicrobatch;
use gradient::GradientBuffer;
use layer::CompiledLayer;
use layerspec::ValueId;
use memory::KvCache;
use optimizer::Optimizer;
use params::Params;
use pipeline::cached::Cached;
use pipeline::ids::MicrobatchKey;
use pipeline::optimizer::OptimizerSpec;
use shards::Shards;
use statistics::RunningStatistics;
use std::collections::{HashMap, HashSet};
use sum::OrderedSum;
use weights::PendingWeightGrads;

/// A stage that computes.
///
/// After an error in the forward or backward pass of a microbatch the step is void: call
/// [`Engine::discard`], [`Engine::undo_statistics`] and [`Engine::zero_grad`], and the stage is ready for the next.
#[derive(Debug)]
pub struct Engine {
    stage: StageConfig,
    params: Params,
    layers: Vec<CompiledLayer>,
    /// For each layer the values that nobody needs once it is done.
    freed_after: Vec<Vec<ValueId>>,
    saved: HashMap<MicrobatchKey, SavedMicrobatch>,
    pending_weight_grads: HashMap<MicrobatchKey, PendingWeightGrads>,
    /// By layer, and place among its parameters.
    gradients: Vec<Vec<GradientBuffer>>,
    /// Gradients that are not added yet.
    trees: GradientTrees,
    /// This replica's shards of gradients and parameters.
    shards: Shards,
    statistics: RunningStatistics,
    /// The contributions of other stages to the gradients of parameters, by place in the stage.
    tied_grad_sums: HashMap<usize, OrderedSum>,
    optimizer: Option<Optimizer>,
    /// How often the parameters have changed.
    version: u64,
    kv_cache: KvCache,
    /// Forward passes find out where a number is not finite.
    checks_finite: bool,
}

impl Engine {
    /// Makes the stage, its parameters filled as PyTorch would, from the run's seed and their names.
    pub fn build(stage: StageConfig) -> Result<Self, EngineError> {
        check_connected(&stage)?;
        let mut params = Params::new(&stage)?;
        let layers = compile_layers(&stage, &params)?;
        let gradients =
            params.bindings.iter().map(|own| own.iter().map(|_| GradientBuffer::default()).collect()).collect();
        let shards = Shards::new(&stage, &mut params)?;
        Ok(Engine {
            freed_after: freed_after(&stage),
            trees: GradientTrees::new(&stage, &params),
            shards,
            statistics: RunningStatistics::new(&stage, &params),
            stage,
            params,
            layers,
            saved: HashMap::new(),
            pending_weight_grads: HashMap::new(),
            gradients,
            tied_grad_sums: HashMap::new(),
            optimizer: None,
            version: 0,
            kv_cache: KvCache::default(),
            checks_finite: false,
        })
    }

    /// The configuration of the stage.
    pub fn stage(&self) -> &StageConfig {
        &self.stage
    }

    /// How often the parameters have changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The number of microbatches that wait for their backward pass, or half of it.
    pub fn pending_microbatches(&self) -> usize {
        self.saved.len() + self.pending_weight_grads.len()
    }

    /// Sets the optimizer. Its state starts anew.
    pub fn set_optimizer(&mut self, spec: OptimizerSpec) {
        self.optimizer = Some(Optimizer::new(spec));
    }

    /// The sequences that the next forward passes continue; nothing for passes that stand alone.
    ///
    /// # Errors
    /// The rows cannot be brought to the device.
    pub fn begin_cached_pass(&mut self, cached: Option<&Cached>) -> Result<(), EngineError> {
        self.kv_cache.begin_pass(cached, &self.stage)
    }

    /// Whether the next forward passes look at every number and fail where one is not finite: at what comes in, at parameters
    /// and at what each layer makes.
    pub fn set_check_finite(&mut self, check: bool) {
        self.checks_finite = check;
    }

    /// Has running statistics of norms forget what they learned of a batch, whose step is void, if it was the last.
    pub fn undo_statistics(&mut self, batch: u64) {
        self.statistics.undo(batch, &self.params);
    }

    /// Forgets what is kept of a batch's microbatches. Gradients that some of them have added stay
    /// until [`Engine::zero_grad`], unless they are summed along a tree.
    pub fn discard(&mut self, batch: u64) {
        self.trees.discard(batch);
        self.statistics.discard(batch);
        self.saved.retain(|key, _| key.batch != batch);
        self.pending_weight_grads.retain(|key, _| key.batch != batch);
    }
}

/// Layers with their ops. A value's gradient is wanted where it comes from outside and is asked for, or was made by a layer
/// with gradients.
fn compile_layers(stage: &StageConfig, params: &Params) -> Result<Vec<CompiledLayer>, EngineError> {
    let mut wanted: HashSet<ValueId> =
        stage.inputs.iter().filter(|input| input.needs_grad).map(|input| input.value).collect();
    let ready = stage.layers.iter().zip(&params.bindings).map(|(spec, bindings)| {
        let needs_input_grad: Vec<bool> = spec.inputs.iter().map(|value| wanted.contains(value)).collect();
        let layer = CompiledLayer::new(spec, bindings, params, &needs_input_grad, (&stage.custom_layers, stage.device));
        let layer = layer.map_err(in_layer(spec, LayerPhase::Initialisation))?;
        if layer.has_grad {
            wanted.extend(&spec.outputs);
        }
        Ok(layer)
    });
    ready.collect()
}

/// Every value that a layer or the outside needs comes in or is made before.
fn check_connected(stage: &StageConfig) -> Result<(), EngineError> {
    let mut known: HashSet<ValueId> = stage.inputs.iter().map(|input| input.value).collect();
    for layer in &stage.layers {
        if let Some(&value) = layer.inputs.iter().find(|value| !known.contains(value)) {
            return Err(EngineError::MissingValue { value, by: format!("layer {}", layer.name) });
        }
        known.extend(&layer.outputs);
    }
    let made: HashSet<ValueId> = stage.layers.iter().flat_map(|layer| layer.outputs.iter().copied()).collect();
    match stage.outputs.iter().find(|value| !made.contains(value)) {
        Some(&value) => Err(EngineError::MissingValue { value, by: "the stage's outputs".into() }),
        None => Ok(()),
    }
}

fn freed_after(stage: &StageConfig) -> Vec<Vec<ValueId>> {
    let mut needed: HashSet<ValueId> = stage.outputs.iter().copied().collect();
    let layers = stage.layers.iter().rev();
    let mut freed: Vec<Vec<ValueId>> = layers
        .map(|layer| {
            let values = layer.outputs.iter().chain(&layer.inputs);
            values.copied().filter(|&value| needed.insert(value)).collect()
        })
        .collect();
    freed.reverse();
    freed
}
