//! A stage at work: its layers, parameters, gradients and optimizer. Synchronous and without any
//! network; the compute thread owns it and calls it.
//!
//! What it computes does not depend on where the model is cut. Every layer runs on detached
//! inputs and goes back by itself, whether or not its neighbour is in the same stage; whatever
//! passes between layers has one layout; and sums are taken in one order:
//!
//! - the gradient of a value: the loss's, the caller's, then its uses by descending layer and port;
//! - the gradient of a parameter: for each layer that uses it the microbatches in the order of their backward passes,
//!   and at the step the layers, descending. The products that make a weight's gradient add straight to the sum. Or each
//!   microbatch's is made by itself and they are summed along a tree, which replicas of the stage can share
//!   ([`Engine::backward_along`]).

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
pub use branch::{Along, HandOut};
use error::in_layer;
pub use error::{Doing, EngineError};
pub use held::Held;
pub use measure::measure;
pub use own::{CustomLayer, Forward, OwnLayers};
pub use stage::{LossTask, Mode, Pass, StageInput, StageModel};
pub use tied::ByStage;

use branch::Trees;
use forward::Saved;
use gradient::Gradient;
use layer::Layer;
use layerspec::ValueId;
use memory::Memory;
use optimizer::Optimizer;
use params::Params;
use pipeline::cached::Cached;
use pipeline::ids::MicrobatchKey;
use pipeline::optimizer::OptimizerSpec;
use shards::Shards;
use statistics::Statistics;
use std::collections::{HashMap, HashSet};
use sum::Sum;
use weights::Halfway;

/// A stage that computes.
///
/// After an error in the forward or backward pass of a microbatch the step is void: call
/// [`Engine::discard`], [`Engine::undo_statistics`] and [`Engine::zero_grad`], and the stage is ready for the next.
#[derive(Debug)]
pub struct Engine {
    stage: StageModel,
    params: Params,
    layers: Vec<Layer>,
    /// For each layer the values that nobody needs once it is done.
    last_used: Vec<Vec<ValueId>>,
    saved: HashMap<MicrobatchKey, Saved>,
    halfway: HashMap<MicrobatchKey, Halfway>,
    /// By layer, and place among its parameters.
    gradients: Vec<Vec<Gradient>>,
    /// What is not yet added to them.
    trees: Trees,
    /// What of them, and of the parameters, is this replica's.
    shards: Shards,
    statistics: Statistics,
    /// What other stages have added to the gradients of parameters, by place in the stage.
    from_others: HashMap<usize, Sum>,
    optimizer: Option<Optimizer>,
    /// How often the parameters have changed.
    version: u64,
    memory: Memory,
    /// Forward passes find out where a number is not finite.
    checks_numbers: bool,
}

impl Engine {
    /// Makes the stage, its parameters filled as PyTorch would, from the run's seed and their names.
    pub fn build(stage: StageModel) -> Result<Self, EngineError> {
        check_connected(&stage)?;
        let mut params = Params::new(&stage)?;
        let layers = made_ready(&stage, &params)?;
        let gradients = params.bindings.iter().map(|own| own.iter().map(|_| Gradient::default()).collect()).collect();
        let shards = Shards::new(&stage, &mut params)?;
        Ok(Engine {
            last_used: last_used(&stage),
            trees: Trees::new(&stage, &params),
            shards,
            statistics: Statistics::new(&stage, &params),
            stage,
            params,
            layers,
            saved: HashMap::new(),
            halfway: HashMap::new(),
            gradients,
            from_others: HashMap::new(),
            optimizer: None,
            version: 0,
            memory: Memory::default(),
            checks_numbers: false,
        })
    }

    /// What the stage was told to be.
    pub fn stage(&self) -> &StageModel {
        &self.stage
    }

    /// How often the parameters have changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How many microbatches wait for their backward pass, or half of it.
    pub fn waiting(&self) -> usize {
        self.saved.len() + self.halfway.len()
    }

    /// Sets the optimizer. Its state starts anew.
    pub fn set_optimizer(&mut self, spec: OptimizerSpec) {
        self.optimizer = Some(Optimizer::new(spec));
    }

    /// What the next forward passes go on with; nothing for passes that stand alone.
    ///
    /// # Errors
    /// The rows cannot be brought to the device.
    pub fn go_on(&mut self, cached: Option<&Cached>) -> Result<(), EngineError> {
        self.memory.begin(cached, &self.stage)
    }

    /// Whether the next forward passes look at every number and fail where one is not finite: at what comes in, at parameters
    /// and at what each layer makes.
    pub fn check_numbers(&mut self, check: bool) {
        self.checks_numbers = check;
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
        self.halfway.retain(|key, _| key.batch != batch);
    }
}

/// Layers with their ops. A value's gradient is wanted where it comes from outside and is asked for, or was made by a layer
/// with gradients.
fn made_ready(stage: &StageModel, params: &Params) -> Result<Vec<Layer>, EngineError> {
    let mut wanted: HashSet<ValueId> =
        stage.inputs.iter().filter(|input| input.needs_grad).map(|input| input.value).collect();
    let ready = stage.layers.iter().zip(&params.bindings).map(|(spec, bindings)| {
        let wants: Vec<bool> = spec.inputs.iter().map(|value| wanted.contains(value)).collect();
        let layer = Layer::new(spec, bindings, params, &wants, (&stage.own, stage.device));
        let layer = layer.map_err(in_layer(spec, Doing::Initialisation))?;
        if layer.has_grad {
            wanted.extend(&spec.outputs);
        }
        Ok(layer)
    });
    ready.collect()
}

/// Every value that a layer or the outside needs comes in or is made before.
fn check_connected(stage: &StageModel) -> Result<(), EngineError> {
    let mut known: HashSet<ValueId> = stage.inputs.iter().map(|input| input.value).collect();
    for layer in &stage.layers {
        if let Some(&value) = layer.inputs.iter().find(|value| !known.contains(value)) {
            return Err(EngineError::Unconnected { value, by: format!("layer {}", layer.name) });
        }
        known.extend(&layer.outputs);
    }
    let made: HashSet<ValueId> = stage.layers.iter().flat_map(|layer| layer.outputs.iter().copied()).collect();
    match stage.outputs.iter().find(|value| !made.contains(value)) {
        Some(&value) => Err(EngineError::Unconnected { value, by: "the stage's outputs".into() }),
        None => Ok(()),
    }
}

fn last_used(stage: &StageModel) -> Vec<Vec<ValueId>> {
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
