//! The backward pass: layer by layer and op by op, from the last to the first, in two halves. The
//! first gives the gradients of the stage's inputs, for which other stages wait. The second gives
//! those of the parameters (`weight_pass.rs`).

use crate::engine::config::Pass;
use crate::engine::error::{in_layer, EngineError, LayerPhase, PeerDataError};
use crate::engine::gradients::gradient_target::GradientTarget;
use crate::engine::gradients::ordered_sum::OrderedSum;
use crate::engine::layers::op_context::PassPurpose;
use crate::engine::layout::canonical_layout;
use crate::engine::passes::runner::{LayerCall, PassRunner};
use crate::engine::passes::saved_passes::{OpWeightInputs, SavedLayer, SavedMicrobatch};
use layerspec::ValueId;
use std::collections::HashMap;
use tch::Tensor;
use tensor::transfer::to_device;
use tensor::TensorError;

/// The gradients of activations during a backward pass.
#[derive(Default)]
struct ActivationGrads {
    /// Of values made in the stage: the sum so far.
    layer_outputs: HashMap<ValueId, OrderedSum>,
    /// Of values from outside: one for each use, in descending order of layer and port.
    stage_inputs: HashMap<ValueId, Vec<Tensor>>,
}

/// The time of the second half of the backward pass.
pub(crate) enum WeightPass<'a, 'b> {
    /// After the first half of each op.
    Immediate(&'a mut GradientTarget<'b>),
    /// Later: the tensors that it needs are collected.
    Deferred(&'a mut Vec<OpWeightInputs>),
}

impl PassRunner<'_> {
    /// Goes back through a microbatch, and returns the gradients of the stage's inputs.
    pub(crate) fn backward(
        &self,
        mut saved: SavedMicrobatch,
        output_grads: Vec<Vec<Tensor>>,
        weights: &mut WeightPass<'_, '_>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let mut flows = ActivationGrads::default();
        for input in self.stage.config.inputs.iter().filter(|input| input.needs_grad) {
            flows.stage_inputs.insert(input.value, Vec::new());
        }
        tch::no_grad(|| {
            self.seed_output_grads(&mut saved, output_grads, &mut flows)?;
            // A layer's activations are freed as soon as it is complete.
            while let Some(layer) = saved.layers.pop() {
                let place = saved.layers.len();
                if let Some(layer) = layer {
                    self.layer_backward(place, layer, &saved.pass, &mut flows, weights)?;
                }
                if let WeightPass::Immediate(target) = weights {
                    target.finish_layers_from(place)?;
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
            let value = self.stage.config.outputs[output];
            let maker =
                self.stage.config.layers.iter().rposition(|layer| layer.outputs.contains(&value));
            if !maker.is_some_and(|maker| self.stage.layers[maker].has_grad) {
                continue;
            }
            let shape = &saved.output_sizes[output];
            let sum = flows.layer_outputs.entry(value).or_default();
            if let Some(grad) = saved.loss_grads.remove(&output) {
                sum.add(grad)?;
            }
            for grad in others {
                if grad.size() != *shape {
                    let (expected, got) = (shape.clone(), grad.size());
                    return Err(PeerDataError::GradientShape { output, expected, got }.into());
                }
                let grad = to_device(&grad, self.stage.config.device)?;
                sum.add(canonical_layout(grad)?)?;
            }
        }
        Ok(())
    }

    fn layer_backward(
        &self,
        place: usize,
        saved: SavedLayer,
        pass: &Pass,
        flows: &mut ActivationGrads,
        weights: &mut WeightPass<'_, '_>,
    ) -> Result<(), EngineError> {
        let (spec, layer) = (&self.stage.config.layers[place], &self.stage.layers[place]);
        let failed = || in_layer(spec, LayerPhase::Backward);
        let call = LayerCall { place, pass, purpose: PassPurpose::Backward };
        let mut slots: Vec<OrderedSum> = Vec::new();
        slots.resize_with(layer.slots, OrderedSum::default);
        let mut reached = false;
        for (value, &slot) in spec.outputs.iter().zip(&layer.outputs) {
            if let Some(grad) = flows.layer_outputs.remove(value).and_then(OrderedSum::into_tensor)
            {
                slots[slot].add(grad)?;
                reached = true;
            }
        }
        if !reached {
            return Ok(());
        }
        let mut saved = match saved {
            SavedLayer::Ops(saved) => saved,
            SavedLayer::Slots(slots) => {
                self.recompute_saved(place, pass, slots).map_err(failed())?
            }
        };
        while let Some(saved_of_op) = saved.pop() {
            let index = saved.len();
            let node = &layer.nodes[index];
            let made = slots[node.first_output..node.first_output + node.outputs].iter_mut();
            let grads: Vec<Option<Tensor>> =
                made.map(|sum| std::mem::take(sum).into_tensor()).collect();
            if !node.bindings.is_active() || grads.iter().all(Option::is_none) {
                continue;
            }
            let ctx = self.op_context(call, node);
            let back = node.op.backward(&ctx, saved_of_op, grads).map_err(failed())?;
            for (&slot, grad) in node.inputs.iter().zip(back.inputs).rev() {
                if let Some(grad) = grad {
                    slots[slot].add(grad).map_err(failed())?;
                }
            }
            if !back.weight_inputs.is_empty() {
                let inputs =
                    OpWeightInputs { layer: place, node: index, tensors: back.weight_inputs };
                match weights {
                    WeightPass::Immediate(target) => self.op_weight_pass(inputs, pass, target)?,
                    WeightPass::Deferred(op_weight_inputs) => op_weight_inputs.push(inputs),
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

    fn input_grads(
        &self,
        mut entered: HashMap<ValueId, Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError> {
        let inputs = self.stage.config.inputs.iter();
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
