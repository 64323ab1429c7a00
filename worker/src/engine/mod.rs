//! A stage at work: its layers, parameters, gradients and optimizer. Synchronous and without any
//! network; the compute thread owns it and calls it.
//!
//! What it computes does not depend on where the model is cut. Every layer runs on detached
//! inputs and goes back by itself, whether or not its neighbour is in the same stage; whatever
//! passes between layers has one layout; and sums are taken in one order:
//!
//! - the gradient of a value: the loss's, the caller's, then its uses by descending layer and port;
//! - the gradient of a parameter: the microbatches in the order of their backward passes, and
//!   within one microbatch the layers that use it, descending.

mod backward;
mod error;
mod forward;
mod layout;
mod loss;
mod modules;
mod optimizer;
mod params;
mod stage;
mod state;
mod sum;

#[cfg(test)]
mod tests;

pub use error::{Doing, EngineError};
pub use stage::{LossTask, Mode, Pass, StageInput, StageModel};

use forward::Saved;
use layerspec::ValueId;
use optimizer::Optimizer;
use params::Params;
use pipeline::ids::MicrobatchKey;
use pipeline::optimizer::OptimizerSpec;
use std::collections::{HashMap, HashSet};
use tch::Tensor;

/// A stage that computes.
///
/// After an error in the forward or backward pass of a microbatch the step is void: call
/// [`Engine::discard`] and [`Engine::zero_grad`], and the stage is ready for the next. (Running statistics of batch norm
/// keep what forward passes of a void step added.)
#[derive(Debug)]
pub struct Engine {
    stage: StageModel,
    params: Params,
    /// For each layer the values that nobody needs once it is done.
    last_used: Vec<Vec<ValueId>>,
    saved: HashMap<MicrobatchKey, Saved>,
    optimizer: Option<Optimizer>,
}

impl Engine {
    /// Makes the stage, its parameters filled as PyTorch would, from the run's seed and their names.
    pub fn build(stage: StageModel) -> Result<Self, EngineError> {
        check_connected(&stage)?;
        let params = Params::new(&stage.layers, stage.seed, stage.device)?;
        let last_used = last_used(&stage);
        Ok(Engine { stage, params, last_used, saved: HashMap::new(), optimizer: None })
    }

    /// What the stage was told to be.
    pub fn stage(&self) -> &StageModel {
        &self.stage
    }

    /// How many microbatches wait for their backward pass.
    pub fn waiting(&self) -> usize {
        self.saved.len()
    }

    /// Sets the optimizer. Its state starts anew.
    pub fn set_optimizer(&mut self, spec: OptimizerSpec) {
        self.optimizer = Some(Optimizer::new(spec));
    }

    /// One step of the optimizer over the gradients so far. Gradients stay until
    /// [`Engine::zero_grad`]; a parameter without one is left alone, as in PyTorch.
    pub fn optim_step(&mut self) -> Result<(), EngineError> {
        let optimizer = self.optimizer.as_mut().ok_or(EngineError::NoOptimizer)?;
        Ok(optimizer.step(&self.params)?)
    }

    /// Forgets all gradients.
    pub fn zero_grad(&mut self) {
        self.params.zero_grad();
    }

    /// Forgets what is kept of a batch's microbatches. Gradients that some of them have added stay
    /// until [`Engine::zero_grad`].
    pub fn discard(&mut self, batch: u64) {
        self.saved.retain(|key, _| key.batch != batch);
    }

    /// The gradients so far by parameter name, none for a parameter that has none yet.
    pub fn gradients(&self) -> Vec<(&str, Option<&Tensor>)> {
        let trained = self.params.all.iter().filter(|param| param.trained);
        trained.map(|param| (param.name.as_str(), param.grad.get())).collect()
    }
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
