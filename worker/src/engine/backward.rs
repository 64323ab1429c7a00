//! The backward pass: layer by layer and op by op, from the last to the first, in two halves. The first gives the
//! gradients of the stage's inputs, which others wait for; the second those of the parameters (`weights.rs`).

use super::branch::TreeTarget;
use super::call::PassPurpose;
use super::error::{in_layer, EngineError, LayerPhase};
use super::forward::{SavedLayer, SavedMicrobatch};
use super::layout::canonical_layout;
use super::stage::Pass;
use super::sum::OrderedSum;
use super::weights::{GradientTarget, OpWeightInputs, PendingWeightGrads};
use super::Engine;
use layerspec::ValueId;
use pipeline::ids::MicrobatchKey;
use std::collections::HashMap;
use tch::Tensor;
use tensor::{Attempt, TensorError};

/// Gradients on their way through the stage.
#[derive(Default)]
struct ActivationGrads {
    /// Of values made in the stage: the sum so far.
    layer_outputs: HashMap<ValueId, OrderedSum>,
    /// Of values from outside: one for each use, in descending order of layer and port.
    stage_inputs: HashMap<ValueId, Vec<Tensor>>,
}

/// When the second half of the backward pass is done.
enum WeightPass<'a, 'b> {
    /// After the first half of each op.
    Immediate(&'a mut GradientTarget<'b>),
    Deferred(&'a mut Vec<OpWeightInputs>),
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
        self.full_backward(key, output_grads, None)
    }

    /// The same, while the parameters' gradients are summed along a tree: [`Engine::reduce`] adds them to those so far.
    pub fn backward_into_tree(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
        target: TreeTarget<'_>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        self.full_backward(key, output_grads, Some(target))
    }

    fn full_backward(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
        target: Option<TreeTarget<'_>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let saved = self.remove_saved(key, output_grads.len())?;
        self.with_gradient_target(key, target, |engine, sums| {
            engine.run_backward(saved, output_grads, &mut WeightPass::Immediate(sums))
        })
    }

    /// The first half of [`Engine::backward`]: the same result, while the parameters' gradients are left for
    /// [`Engine::backward_weight`]. What only this half needs is freed. Microbatches may come in any order.
    pub fn backward_input(
        &mut self,
        key: MicrobatchKey,
        output_grads: Vec<Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let saved = self.remove_saved(key, output_grads.len())?;
        let (pass, version, mut op_weight_inputs) = (saved.pass, saved.version, Vec::new());
        let result = self.run_backward(saved, output_grads, &mut WeightPass::Deferred(&mut op_weight_inputs))?;
        self.pending_weight_grads.insert(key, PendingWeightGrads { pass, version, op_weight_inputs });
        Ok(result)
    }

    fn remove_saved(&mut self, key: MicrobatchKey, outputs: usize) -> Result<SavedMicrobatch, EngineError> {
        let expected = self.stage.outputs.len();
        if expected != outputs {
            return Err(EngineError::CountMismatch { what: "outputs", expected, got: outputs });
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

    fn run_backward(
        &self,
        mut saved: SavedMicrobatch,
        output_grads: Vec<Vec<Tensor>>,
        weights: &mut WeightPass<'_, '_>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let mut flows = ActivationGrads::default();
        for input in self.stage.inputs.iter().filter(|input| input.needs_grad) {
            flows.stage_inputs.insert(input.value, Vec::new());
        }
        tch::no_grad(|| {
            self.seed_output_grads(&mut saved, output_grads, &mut flows)?;
            // A layer's activations are freed as soon as it is done.
            while let Some(kept) = saved.layers.pop() {
                if let Some(kept) = kept {
                    self.layer_backward(saved.layers.len(), kept, &saved.pass, &mut flows, weights)?;
                }
                if let WeightPass::Immediate(sums) = weights {
                    sums.finish_layers_from(saved.layers.len())?;
                }
            }
            self.input_grads(flows.stage_inputs)
        })
    }

    fn seed_output_grads(
        &self,
        saved: &mut SavedMicrobatch,
        output_grads: Vec<Vec<Tensor>>,
        flows: &mut ActivationGrads,
    ) -> Result<(), EngineError> {
        for (output, others) in output_grads.into_iter().enumerate() {
            let value = self.stage.outputs[output];
            let maker = self.stage.layers.iter().rposition(|layer| layer.outputs.contains(&value));
            if !maker.is_some_and(|maker| self.layers[maker].has_grad) {
                continue;
            }
            let shape = &saved.output_sizes[output];
            let sum = flows.layer_outputs.entry(value).or_default();
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
                sum.add(canonical_layout(grad)?)?;
            }
        }
        Ok(())
    }

    fn layer_backward(
        &self,
        place: usize,
        kept: SavedLayer,
        pass: &Pass,
        flows: &mut ActivationGrads,
        weights: &mut WeightPass<'_, '_>,
    ) -> Result<(), EngineError> {
        let (spec, layer) = (&self.stage.layers[place], &self.layers[place]);
        let failed = || in_layer(spec, LayerPhase::Backward);
        let mut slots: Vec<OrderedSum> = Vec::new();
        slots.resize_with(layer.slots, OrderedSum::default);
        let mut reached = false;
        for (value, &slot) in spec.outputs.iter().zip(&layer.outputs) {
            if let Some(grad) = flows.layer_outputs.remove(value).and_then(OrderedSum::into_tensor) {
                slots[slot].add(grad)?;
                reached = true;
            }
        }
        if !reached {
            return Ok(());
        }
        let mut kept = match kept {
            SavedLayer::Ops(kept) => kept,
            SavedLayer::Slots(slots) => self.recompute_saved(place, pass, slots).map_err(failed())?,
        };
        while let Some(kept_of_op) = kept.pop() {
            let index = kept.len();
            let node = &layer.nodes[index];
            let made = slots[node.first_output..node.first_output + node.outputs].iter_mut();
            let grads: Vec<Option<Tensor>> = made.map(|sum| std::mem::take(sum).into_tensor()).collect();
            if !node.is_active() || grads.iter().all(Option::is_none) {
                continue;
            }
            let ctx = self.op_context(place, node, pass, PassPurpose::Backward);
            let back = node.op.backward(&ctx, kept_of_op, grads).map_err(failed())?;
            for (&slot, grad) in node.inputs.iter().zip(back.inputs).rev() {
                if let Some(grad) = grad {
                    slots[slot].add(grad).map_err(failed())?;
                }
            }
            if !back.weight_inputs.is_empty() {
                let rest = OpWeightInputs { layer: place, node: index, tensors: back.weight_inputs };
                match weights {
                    WeightPass::Immediate(sums) => self.op_weight_pass(rest, pass, sums)?,
                    WeightPass::Deferred(op_weight_inputs) => op_weight_inputs.push(rest),
                }
            }
        }
        for (value, sum) in spec.inputs.iter().zip(slots).rev() {
            if let Some(grad) = sum.into_tensor() {
                flows.add(*value, canonical_layout(grad).map_err(failed())?)?;
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
                let mut sum = OrderedSum::default();
                for grad in uses {
                    sum.add(grad)?;
                }
                Ok(sum.into_tensor().into_iter().collect())
            })
            .collect()
    }
}

impl ActivationGrads {
    fn add(&mut self, value: ValueId, grad: Tensor) -> Result<(), TensorError> {
        match self.stage_inputs.get_mut(&value) {
            Some(uses) => uses.push(grad),
            None => self.layer_outputs.entry(value).or_default().add(grad)?,
        }
        Ok(())
    }
}
