//! The backward pass: layer by layer, from the last to the first.

use super::error::{in_layer, Doing, EngineError};
use super::forward::{LayerRun, Saved};
use super::layout::plain;
use super::sum::Sum;
use super::Engine;
use layerspec::ValueId;
use pipeline::ids::MicrobatchKey;
use std::collections::HashMap;
use tch::Tensor;
use tensor::{Attempt, TensorError};

/// Gradients on their way through the stage.
#[derive(Default)]
struct Flows {
    /// Of values made in the stage: the sum so far.
    made: HashMap<ValueId, Sum>,
    /// Of values from outside: one for each use, in descending order of layer and port.
    entered: HashMap<ValueId, Vec<Tensor>>,
    /// Of parameters that several layers use: the sum of this microbatch so far.
    tied: HashMap<usize, Sum>,
}

impl Engine {
    /// Goes back through the microbatch of `key`, adds the gradients of the stage's parameters to
    /// those of earlier microbatches, and returns the gradients of the stage's inputs.
    ///
    /// `output_grads[i]` holds what others contribute to the gradient of output `i`, in the order
    /// of summing; the loss's own gradient comes before them, this stage's uses after. It is empty
    /// where there is nothing.
    ///
    /// In the result, each input that needs its gradient has one tensor for each of this stage's
    /// uses, by descending layer and port, or their sum where the stage was told to sum. A use
    /// that no gradient reaches has none, so the list may be shorter, or empty. The other inputs
    /// have an empty list. The tensors may share memory with the arguments: do not write to them.
    pub fn backward(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let (expected, got) = (self.stage.outputs.len(), output_grads.len());
        if expected != got {
            return Err(EngineError::Count { what: "outputs", expected, got });
        }
        let mut saved = self.saved.remove(&key).ok_or(EngineError::UnknownMicrobatch { key })?;
        let mut flows = Flows::default();
        for input in self.stage.inputs.iter().filter(|input| input.needs_grad) {
            flows.entered.insert(input.value, Vec::new());
        }
        self.take_output_grads(&mut saved, output_grads, &mut flows)?;
        // A layer's activations are freed as soon as it is done.
        while let Some(run) = saved.runs.pop() {
            if let Some(run) = run {
                self.layer_backward(saved.runs.len(), run, &mut flows)?;
            }
        }
        for (index, sum) in flows.tied {
            if let Some(grad) = sum.into_tensor() {
                self.params.all[index].grad.add(grad)?;
            }
        }
        self.input_grads(flows.entered)
    }

    fn take_output_grads(
        &self,
        saved: &mut Saved,
        output_grads: Vec<Vec<Tensor>>,
        flows: &mut Flows,
    ) -> Result<(), EngineError> {
        for (output, others) in output_grads.into_iter().enumerate() {
            let value = self.stage.outputs[output];
            let Some(shape) = self.made(saved, value).map(Tensor::size) else { continue };
            let sum = flows.made.entry(value).or_default();
            if let Some(grad) = saved.loss_grads.remove(&output) {
                sum.add(grad)?;
            }
            for grad in others {
                if grad.size() != shape {
                    return Err(EngineError::GradientShape { output, expected: shape, got: grad.size() });
                }
                let moved = grad.f_to_device(self.stage.device).attempt("moving a gradient to the device")?;
                sum.add(plain(&moved)?)?;
            }
        }
        Ok(())
    }

    /// The value as the layer made it, if a gradient can flow through it.
    fn made<'a>(&self, saved: &'a Saved, value: ValueId) -> Option<&'a Tensor> {
        let runs = saved.runs.iter().zip(&self.stage.layers);
        let (run, port) = runs.rev().find_map(|(run, layer)| {
            let port = layer.outputs.iter().position(|output| *output == value)?;
            Some((run.as_ref()?, port))
        })?;
        run.outputs.get(port).filter(|output| output.requires_grad())
    }

    fn layer_backward(&mut self, place: usize, run: LayerRun, flows: &mut Flows) -> Result<(), EngineError> {
        let layer = &self.stage.layers[place];
        let mut reached = Vec::new();
        for (value, output) in layer.outputs.iter().zip(&run.outputs) {
            let grad = flows.made.remove(value).and_then(Sum::into_tensor);
            reached.extend(grad.filter(|_| output.requires_grad()).map(|grad| (output, grad)));
        }
        if reached.is_empty() {
            return Ok(());
        }
        let outputs: Vec<&Tensor> = reached.iter().map(|(output, _)| *output).collect();
        let output_grads: Vec<&Tensor> = reached.iter().map(|(_, grad)| grad).collect();
        let bindings = &self.params.bindings[place];
        let trained: Vec<usize> =
            bindings.iter().map(|binding| binding.index).filter(|&index| self.params.all[index].trained).collect();
        let ports: Vec<usize> = (0..run.inputs.len()).filter(|&port| run.inputs[port].requires_grad()).collect();
        let leaves = ports.iter().map(|&port| &run.inputs[port]);
        let weights = trained.iter().map(|&index| &self.params.all[index].tensor);
        let wanted: Vec<&Tensor> = leaves.chain(weights).collect();

        let grads = backward(&outputs, &output_grads, &wanted).map_err(in_layer(layer, Doing::Backward))?;
        let (of_inputs, of_params) = grads.split_at(ports.len());
        for (&port, grad) in ports.iter().zip(of_inputs).rev() {
            if let Some(grad) = grad {
                flows.add(layer.inputs[port], grad.shallow_clone())?;
            }
        }
        for (&index, grad) in trained.iter().zip(of_params) {
            let Some(grad) = grad else { continue };
            let param = &mut self.params.all[index];
            let sum = if param.aliases.is_empty() { &mut param.grad } else { flows.tied.entry(index).or_default() };
            sum.add(grad.shallow_clone())?;
        }
        Ok(())
    }

    fn input_grads(&self, mut entered: HashMap<ValueId, Vec<Tensor>>) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let inputs = self.stage.inputs.iter();
        inputs
            .map(|input| {
                let uses = entered.remove(&input.value).unwrap_or_default();
                if !input.sum_here {
                    return Ok(uses);
                }
                let mut sum = Sum::default();
                for grad in uses {
                    sum.add(grad)?;
                }
                Ok(sum.into_tensor().into_iter().collect())
            })
            .collect()
    }
}

impl Flows {
    fn add(&mut self, value: ValueId, grad: Tensor) -> Result<(), TensorError> {
        match self.entered.get_mut(&value) {
            Some(uses) => uses.push(grad),
            None => self.made.entry(value).or_default().add(grad)?,
        }
        Ok(())
    }
}

/// The gradients of `wanted`, in plain layout.
fn backward(
    outputs: &[&Tensor],
    output_grads: &[&Tensor],
    wanted: &[&Tensor],
) -> Result<Vec<Option<Tensor>>, TensorError> {
    let grads = tensor::grad::backward(outputs, output_grads, wanted)?;
    grads.iter().map(|grad| grad.as_ref().map(plain).transpose()).collect()
}
