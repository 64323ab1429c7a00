//! The forward pass: each layer on detached inputs, keeping what its own backward needs.

use super::error::{in_layer, Doing, EngineError};
use super::layout::plain;
use super::modules::{module, Call};
use super::stage::{Mode, Pass};
use super::Engine;
use layerspec::ValueId;
use std::collections::HashMap;
use tch::Tensor;
use tensor::{Attempt, TensorError};

/// What is kept of a microbatch between forward and backward.
#[derive(Debug)]
pub(super) struct Saved {
    /// By layer of the stage; none for a layer through which no gradient flows.
    pub(super) runs: Vec<Option<LayerRun>>,
    /// The gradient of the loss, by output of the stage.
    pub(super) loss_grads: HashMap<usize, Tensor>,
}

/// One layer's piece of the autograd graph: from `outputs` back to `inputs` and its parameters.
#[derive(Debug)]
pub(super) struct LayerRun {
    /// A leaf of its own for each port.
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
}

/// A value on its way through the stage.
struct Flowing {
    /// Detached, in plain layout.
    tensor: Tensor,
    needs_grad: bool,
}

impl Engine {
    /// Runs the stage's layers on one microbatch: the values of [`super::StageModel::inputs`] in,
    /// those of [`super::StageModel::outputs`] out, each in that order, contiguous, on the stage's
    /// device, without a graph.
    ///
    /// In [`Mode::Train`] keeps what [`Engine::backward`] needs, under the pass's key. The tensors
    /// that go in and come out may share memory with what is kept: do not write to them.
    pub fn forward(&mut self, pass: &Pass, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, EngineError> {
        if pass.mode == Mode::Train && self.saved.contains_key(&pass.key) {
            return Err(EngineError::AlreadyForwarded { key: pass.key });
        }
        let mut values = self.arrived(inputs)?;
        let mut runs = Vec::with_capacity(self.stage.layers.len());
        for place in 0..self.stage.layers.len() {
            runs.push(self.run_layer(place, pass, &mut values)?);
            for value in &self.last_used[place] {
                values.remove(value);
            }
        }
        let outputs = self.stage.outputs.iter().map(|&value| match values.get(&value) {
            Some(flowing) => Ok(flowing.tensor.shallow_clone()),
            None => Err(EngineError::Unconnected { value, by: "the stage's outputs".into() }),
        });
        let outputs = outputs.collect::<Result<_, _>>()?;
        if pass.mode == Mode::Train {
            self.saved.insert(pass.key, Saved { runs, loss_grads: HashMap::new() });
        }
        Ok(outputs)
    }

    fn arrived(&self, inputs: Vec<Tensor>) -> Result<HashMap<ValueId, Flowing>, EngineError> {
        let (expected, got) = (self.stage.inputs.len(), inputs.len());
        if expected != got {
            return Err(EngineError::Count { what: "inputs", expected, got });
        }
        let arrive = |tensor: Tensor| -> Result<Tensor, TensorError> {
            plain(&tensor.f_detach()?.f_to_device(self.stage.device).attempt("moving an input to the device")?)
        };
        let arrivals = self.stage.inputs.iter().zip(inputs);
        arrivals
            .map(|(input, tensor)| Ok((input.value, Flowing { tensor: arrive(tensor)?, needs_grad: input.needs_grad })))
            .collect()
    }

    fn run_layer(
        &self,
        place: usize,
        pass: &Pass,
        values: &mut HashMap<ValueId, Flowing>,
    ) -> Result<Option<LayerRun>, EngineError> {
        let layer = &self.stage.layers[place];
        let failed = || in_layer(layer, Doing::Forward);
        let mut inputs = Vec::with_capacity(layer.inputs.len());
        for &value in &layer.inputs {
            let by = || format!("layer {}", layer.name);
            let flowing = values.get(&value).ok_or_else(|| EngineError::Unconnected { value, by: by() })?;
            inputs.push(leaf(flowing, pass.mode).map_err(failed())?);
        }

        let grad =
            pass.mode == Mode::Train && (self.params.any_trained(place) || inputs.iter().any(Tensor::requires_grad));
        let call = Call::new(self, place, pass, &inputs);
        let run =
            || -> Result<Vec<Tensor>, TensorError> { module(&layer.kind).forward(&call)?.iter().map(plain).collect() };
        let outputs = if grad { tch::with_grad(run) } else { tch::no_grad(run) }.map_err(failed())?;

        if outputs.len() != layer.outputs.len() {
            let problem = format!("made {} outputs, the model has {}", outputs.len(), layer.outputs.len());
            return Err(failed()(TensorError::invalid("the layer", problem)));
        }
        for (&value, output) in layer.outputs.iter().zip(&outputs) {
            let tensor = output.f_detach().map_err(TensorError::from).map_err(failed())?;
            values.insert(value, Flowing { tensor, needs_grad: output.requires_grad() });
        }
        let has_graph = outputs.iter().any(Tensor::requires_grad);
        Ok(has_graph.then_some(LayerRun { inputs, outputs }))
    }
}

/// An input port's own leaf: the gradient of each use of a value is taken apart.
fn leaf(flowing: &Flowing, mode: Mode) -> Result<Tensor, TensorError> {
    let leaf = flowing.tensor.f_detach()?;
    let wanted = mode == Mode::Train && flowing.needs_grad;
    leaf.f_set_requires_grad(wanted).attempt("asking for the gradient of an input")
}
