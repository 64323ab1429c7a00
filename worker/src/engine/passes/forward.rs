//! The forward pass: layer after layer. Each saves what its own backward pass needs.

use crate::engine::config::{Mode, Pass};
use crate::engine::error::{in_layer, layer_error, EngineError, LayerPhase, PlanError};
use crate::engine::layers::op_context::PassPurpose;
use crate::engine::layout::{canonical_layout, deep_copy};
use crate::engine::passes::compiled_stage::Values;
use crate::engine::passes::finite;
use crate::engine::passes::runner::{empty_slot, LayerCall, PassRunner};
use crate::engine::passes::saved_passes::SavedLayer;
use layerspec::Layer;
use tch::Tensor;
use tensor::{memory, TensorError};

/// The result of a forward pass.
pub(crate) struct ForwardResult {
    /// The stage's outputs, in its order.
    pub(crate) outputs: Vec<Tensor>,
    /// By layer; `None` for a layer through which no gradient flows.
    pub(crate) layers: Vec<Option<SavedLayer>>,
}

impl PassRunner<'_> {
    /// Runs all layers on the stage's inputs.
    pub(crate) fn forward(
        &self,
        pass: &Pass,
        mut values: Values,
    ) -> Result<ForwardResult, EngineError> {
        let layers = tch::no_grad(|| {
            let layers = (0..self.stage.layers.len()).map(|place| {
                let saved = self.run_or_reuse(place, pass, &mut values)?;
                for value in &self.stage.freed_after[place] {
                    values.remove(value);
                }
                Ok(saved)
            });
            layers.collect::<Result<Vec<_>, EngineError>>()
        })?;
        let outputs = self.stage.config.outputs.iter().map(|value| match values.get(value) {
            Some(tensor) => Ok(self.apart_from_parameters(tensor)?),
            None => {
                let by = "the stage's outputs".into();
                Err(PlanError::MissingValue { value: *value, by }.into())
            }
        });
        Ok(ForwardResult { outputs: outputs.collect::<Result<_, EngineError>>()?, layers })
    }

    /// The tensor, or a copy if it lies in the memory of a parameter, which the next step changes.
    fn apart_from_parameters(&self, tensor: &Tensor) -> Result<Tensor, TensorError> {
        let is_in_one = || {
            let mut params = self.params.all.iter();
            params.any(|param| memory::share_memory(&param.tensor, tensor))
        };
        match self.stage.gives_parameters && is_in_one() {
            true => deep_copy(tensor),
            false => Ok(tensor.shallow_clone()),
        }
    }

    /// Runs a layer, or takes its outputs of the pass before if its inputs are the same.
    fn run_or_reuse(
        &self,
        place: usize,
        pass: &Pass,
        values: &mut Values,
    ) -> Result<Option<SavedLayer>, EngineError> {
        let spec = &self.stage.config.layers[place];
        let reused = self.kv_cache.reused_outputs(spec);
        if let Some(made) = reused.map_err(in_layer(spec, LayerPhase::Forward))? {
            values.extend(made);
            return Ok(None);
        }
        let saved = self.run_layer(place, pass, values)?;
        self.kv_cache.store_outputs(spec, values);
        Ok(saved)
    }

    fn run_layer(
        &self,
        place: usize,
        pass: &Pass,
        values: &mut Values,
    ) -> Result<Option<SavedLayer>, EngineError> {
        let (spec, layer) = (&self.stage.config.layers[place], &self.stage.layers[place]);
        let failed = || in_layer(spec, LayerPhase::Forward);
        let mut slots = self.input_slots(place, values)?;
        let params = self.params.bindings[place].iter();
        let infinities = pass
            .check_finite
            .then(|| {
                let params = params.map(|binding| &self.params.all[binding.index]);
                finite::check_inputs(spec, slots.iter().flatten(), params)
            })
            .transpose()?;
        let backward = pass.mode == Mode::Train && layer.has_grad;
        let call = |purpose| LayerCall { place, pass, purpose };
        let saved = match &layer.recompute_plan {
            Some(plan) if backward => {
                let keep = |slot: usize| plan.saved_slots.get(slot).copied().unwrap_or(false);
                self.run_ops(call(PassPurpose::OutputsOnly), &mut slots, keep).map_err(failed())?;
                let copies = slots.iter().enumerate().map(|(slot, tensor)| match tensor {
                    Some(tensor) if keep(slot) => Some(tensor.shallow_clone()),
                    _ => None,
                });
                Some(SavedLayer::Slots(copies.collect()))
            }
            _ => {
                let purpose =
                    if backward { PassPurpose::Backward } else { PassPurpose::OutputsOnly };
                let ops = self.run_ops(call(purpose), &mut slots, |_| false).map_err(failed())?;
                backward.then_some(SavedLayer::Ops(ops))
            }
        };
        check_output_count(spec, layer.outputs.len())?;
        for (value, &slot) in spec.outputs.iter().zip(&layer.outputs) {
            let output = slots[slot].take().ok_or_else(|| failed()(empty_slot(slot)))?;
            let output = canonical_layout(output).map_err(failed())?;
            if let Some(infinities) = infinities {
                finite::check_output(spec, &output, infinities)?;
            }
            values.insert(*value, output);
        }
        Ok(saved)
    }

    /// The first slots of a layer: its inputs. The last use of a value takes its tensor along, so
    /// that the op may work in its memory.
    fn input_slots(
        &self,
        place: usize,
        values: &mut Values,
    ) -> Result<Vec<Option<Tensor>>, EngineError> {
        let spec = &self.stage.config.layers[place];
        let freed = &self.stage.freed_after[place];
        let mut slots = Vec::with_capacity(self.stage.layers[place].slots);
        for (port, value) in spec.inputs.iter().enumerate() {
            let is_last = freed.contains(value) && !spec.inputs[port + 1..].contains(value);
            let tensor = if is_last {
                values.remove(value)
            } else {
                values.get(value).map(Tensor::shallow_clone)
            };
            let missing =
                || PlanError::MissingValue { value: *value, by: format!("layer {}", spec.name) };
            slots.push(Some(tensor.ok_or_else(missing)?));
        }
        Ok(slots)
    }
}

fn check_output_count(spec: &Layer, made: usize) -> Result<(), EngineError> {
    let expected = spec.outputs.len();
    if made == expected {
        return Ok(());
    }
    let problem = format!("made {made} outputs, the model has {expected}");
    Err(in_layer(spec, LayerPhase::Forward)(layer_error(problem)))
}
