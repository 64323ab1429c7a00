//! The backward pass: layer by layer and op by op, from the last to the first, in two halves. The first gives the
//! gradients of the stage's inputs, which others wait for; the second those of the parameters (`weights.rs`).

use super::branch::Along;
use super::call::Purpose;
use super::error::{in_layer, Doing, EngineError};
use super::forward::{KeptLayer, Saved};
use super::layout::plain;
use super::stage::Pass;
use super::sum::Sum;
use super::weights::{Halfway, Rest, Sums};
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
}

/// When the second half of the backward pass is done.
enum Weights<'a, 'b> {
    /// After the first half of each op.
    AtOnce(&'a mut Sums<'b>),
    Later(&'a mut Vec<Rest>),
}

impl Engine {
    /// Goes back through the microbatch of `key`, adds the gradients of the stage's parameters to
    /// those of earlier microbatches, and returns the gradients of the stage's inputs.
    ///
    /// `output_grads[i]` holds what others contribute to the gradient of output `i`, in the order
    /// of summing; the loss's own gradient comes before them, this stage's uses after. It is empty
    /// where there is nothing. Memory that nobody else refers to may be written to.
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
        self.both_halves(key, output_grads, None)
    }

    /// The same, while the parameters' gradients are summed along a tree: [`Engine::reduce`] adds them to those so far.
    pub fn backward_along(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
        along: Along<'_>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        self.both_halves(key, output_grads, Some(along))
    }

    fn both_halves(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
        along: Option<Along<'_>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let saved = self.take_saved(key, output_grads.len())?;
        self.summing(key, along, |engine, sums| engine.go_back(saved, output_grads, &mut Weights::AtOnce(sums)))
    }

    /// The first half of [`Engine::backward`]: the same result, while the parameters' gradients are left for
    /// [`Engine::backward_weight`]. What only this half needs is freed. Microbatches may come in any order.
    pub fn backward_input(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let saved = self.take_saved(key, output_grads.len())?;
        let (pass, version, mut rests) = (saved.pass, saved.version, Vec::new());
        let result = self.go_back(saved, output_grads, &mut Weights::Later(&mut rests))?;
        self.halfway.insert(key, Halfway { pass, version, rests });
        Ok(result)
    }

    fn take_saved(&mut self, key: MicrobatchKey, outputs: usize) -> Result<Saved, EngineError> {
        let expected = self.stage.outputs.len();
        if expected != outputs {
            return Err(EngineError::Count { what: "outputs", expected, got: outputs });
        }
        let saved = self.saved.remove(&key).ok_or(EngineError::UnknownMicrobatch { key })?;
        self.check_version(key, saved.version)?;
        self.check_gathered()?;
        Ok(saved)
    }

    pub(super) fn check_version(&self, key: MicrobatchKey, version: u64) -> Result<(), EngineError> {
        if version == self.version {
            Ok(())
        } else {
            Err(EngineError::ParametersChanged { key })
        }
    }

    fn go_back(
        &self,
        mut saved: Saved,
        output_grads: Vec<Vec<Tensor>>,
        weights: &mut Weights<'_, '_>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let mut flows = Flows::default();
        for input in self.stage.inputs.iter().filter(|input| input.needs_grad) {
            flows.entered.insert(input.value, Vec::new());
        }
        tch::no_grad(|| {
            self.take_output_grads(&mut saved, output_grads, &mut flows)?;
            // A layer's activations are freed as soon as it is done.
            while let Some(kept) = saved.layers.pop() {
                if let Some(kept) = kept {
                    self.layer_backward(saved.layers.len(), kept, &saved.pass, &mut flows, weights)?;
                }
                if let Weights::AtOnce(sums) = weights {
                    sums.done_with(saved.layers.len())?;
                }
            }
            self.input_grads(flows.entered)
        })
    }

    fn take_output_grads(
        &self,
        saved: &mut Saved,
        output_grads: Vec<Vec<Tensor>>,
        flows: &mut Flows,
    ) -> Result<(), EngineError> {
        for (output, others) in output_grads.into_iter().enumerate() {
            let value = self.stage.outputs[output];
            let maker = self.stage.layers.iter().rposition(|layer| layer.outputs.contains(&value));
            if !maker.is_some_and(|maker| self.layers[maker].has_grad) {
                continue;
            }
            let shape = &saved.output_sizes[output];
            let sum = flows.made.entry(value).or_default();
            if let Some(grad) = saved.loss_grads.remove(&output) {
                sum.add(grad)?;
            }
            for grad in others {
                if grad.size() != *shape {
                    return Err(EngineError::GradientShape { output, expected: shape.clone(), got: grad.size() });
                }
                let grad = if grad.device() == self.stage.device {
                    grad
                } else {
                    grad.f_to_device(self.stage.device).attempt("moving a gradient to the device")?
                };
                sum.add(plain(grad)?)?;
            }
        }
        Ok(())
    }

    fn layer_backward(
        &self,
        place: usize,
        kept: KeptLayer,
        pass: &Pass,
        flows: &mut Flows,
        weights: &mut Weights<'_, '_>,
    ) -> Result<(), EngineError> {
        let (spec, layer) = (&self.stage.layers[place], &self.layers[place]);
        let failed = || in_layer(spec, Doing::Backward);
        let mut slots: Vec<Sum> = Vec::new();
        slots.resize_with(layer.slots, Sum::default);
        let mut reached = false;
        for (value, &slot) in spec.outputs.iter().zip(&layer.outputs) {
            if let Some(grad) = flows.made.remove(value).and_then(Sum::into_tensor) {
                slots[slot].add(grad)?;
                reached = true;
            }
        }
        if !reached {
            return Ok(());
        }
        let mut kept = match kept {
            KeptLayer::Ops(kept) => kept,
            KeptLayer::Slots(slots) => self.run_again(place, pass, slots).map_err(failed())?,
        };
        while let Some(kept_of_op) = kept.pop() {
            let index = kept.len();
            let node = &layer.nodes[index];
            let made = slots[node.first_output..node.first_output + node.outputs].iter_mut();
            let grads: Vec<Option<Tensor>> = made.map(|sum| std::mem::take(sum).into_tensor()).collect();
            if !node.is_active() || grads.iter().all(Option::is_none) {
                continue;
            }
            let call = self.call(place, node, pass, Purpose::Backward);
            let back = node.op.backward(&call, kept_of_op, grads).map_err(failed())?;
            for (&slot, grad) in node.inputs.iter().zip(back.inputs).rev() {
                if let Some(grad) = grad {
                    slots[slot].add(grad).map_err(failed())?;
                }
            }
            if !back.rest.is_empty() {
                let rest = Rest { layer: place, node: index, tensors: back.rest };
                match weights {
                    Weights::AtOnce(sums) => self.weight_half(rest, pass, sums)?,
                    Weights::Later(rests) => rests.push(rest),
                }
            }
        }
        for (value, sum) in spec.inputs.iter().zip(slots).rev() {
            if let Some(grad) = sum.into_tensor() {
                flows.add(*value, plain(grad).map_err(failed())?)?;
            }
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
