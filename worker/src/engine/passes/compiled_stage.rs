//! The parts of a stage that never change once it is built: its configuration and compiled layers.

use crate::engine::config::StageConfig;
use crate::engine::error::{in_layer, EngineError, LayerPhase, PlanError, SequenceError};
use crate::engine::layer_files::Constants;
use crate::engine::layers::custom_layers::CustomLayers;
use crate::engine::layout::canonical_layout;
use crate::engine::modules::autocast::in_precision;
use crate::engine::modules::lower::lower;
use crate::engine::modules::weighted::recurrent::join_weights;
use crate::engine::params::stage_params::Params;
use crate::engine::passes::compiled_layer::CompiledLayer;
use crate::engine::passes::index_range::Lookups;
use layerspec::{Layer, LayerKind, ValueId};
use std::collections::{HashMap, HashSet};
use tch::Tensor;
use tensor::transfer::to_device;
use tensor::TensorError;

/// The values of a pass that are still needed.
pub(crate) type Values = HashMap<ValueId, Tensor>;

/// A stage with compiled layers.
#[derive(Debug)]
pub(crate) struct CompiledStage {
    pub(crate) config: StageConfig,
    pub(crate) layers: Vec<CompiledLayer>,
    /// By layer: the values that are no longer needed once it is complete.
    pub(crate) freed_after: Vec<Vec<ValueId>>,
    /// Whether a layer gives a parameter itself. Then outputs may lie in its memory.
    pub(crate) gives_parameters: bool,
    lookups: Lookups,
}

impl CompiledStage {
    /// Compiles the layers. `check` must have accepted the configuration.
    ///
    /// # Errors
    /// A layer cannot be made: its code or file is missing, or its arguments do not fit.
    pub(crate) fn build(
        config: StageConfig,
        custom_layers: &CustomLayers,
        params: &Params,
    ) -> Result<Self, EngineError> {
        let layers = compile_layers(&config, custom_layers, params)?;
        let (freed_after, lookups) = (freed_after(&config), Lookups::of(&config));
        lookups.check_constants(&config.layers, custom_layers.files())?;
        let gives_parameters = config.layers.iter().any(gives_its_parameter);
        Ok(CompiledStage { freed_after, gives_parameters, lookups, layers, config })
    }

    /// Moves the stage's inputs to its device, in the layout of fresh memory.
    ///
    /// # Errors
    /// Their number is wrong, an id is outside the table of its layer, or the device refuses one.
    pub(crate) fn receive_inputs(&self, inputs: Vec<Tensor>) -> Result<Values, EngineError> {
        let (expected, got) = (self.config.inputs.len(), inputs.len());
        if expected != got {
            return Err(SequenceError::CountMismatch { what: "inputs", expected, got }.into());
        }
        let receive = |tensor: Tensor| -> Result<Tensor, TensorError> {
            let tensor = if tensor.requires_grad() { tensor.f_detach()? } else { tensor };
            if tensor.device() == self.config.device {
                return canonical_layout(tensor);
            }
            let moved = to_device(&tensor, self.config.device);
            canonical_layout(moved?)
        };
        let arrivals = self.config.inputs.iter().zip(inputs);
        let received = arrivals.map(|(input, tensor)| {
            self.lookups.check(&self.config.layers, input.value, &tensor)?;
            Ok((input.value, receive(tensor)?))
        });
        received.collect()
    }
}

fn gives_its_parameter(layer: &Layer) -> bool {
    matches!(&layer.kind, LayerKind::Parameter(parameter) if !parameter.expand)
}

/// Compiles the layers. A value needs its gradient if it comes from outside and its maker asks for
/// it, or if a layer with gradients makes it.
fn compile_layers(
    config: &StageConfig,
    custom_layers: &CustomLayers,
    params: &Params,
) -> Result<Vec<CompiledLayer>, EngineError> {
    let mut wanted: HashSet<ValueId> =
        config.inputs.iter().filter(|input| input.needs_grad).map(|input| input.value).collect();
    let mut constants = Constants::new();
    let ready = config.layers.iter().zip(&params.bindings).map(|(spec, bindings)| {
        let flows = spec.kind.passes_gradients();
        let needs_input_grad: Vec<bool> =
            spec.inputs.iter().map(|value| flows && wanted.contains(value)).collect();
        let failed = || in_layer(spec, LayerPhase::Initialisation);
        let lowered = lower(spec, custom_layers, &mut constants, config.device);
        let lowered = lowered.map_err(failed())?;
        let weights: Vec<&Tensor> =
            bindings.iter().map(|binding| &params.all[binding.index].tensor).collect();
        join_weights(&spec.kind, &weights).map_err(failed())?;
        let lowered = in_precision(lowered, spec.inputs.len(), spec.precision, config.device);
        let recompute = spec.recompute.unwrap_or_default();
        let layer = CompiledLayer::new(lowered, bindings, params, &needs_input_grad, recompute);
        if layer.has_grad {
            let made = spec.outputs.iter().enumerate();
            wanted.extend(made.filter(|(at, _)| spec.kind.makes_floating(*at)).map(|(_, of)| of));
        }
        Ok(layer)
    });
    ready.collect()
}

/// Checks that every value that a layer or the outside needs comes in or is made before.
///
/// # Errors
/// A value is missing.
pub(crate) fn check_connected(config: &StageConfig) -> Result<(), EngineError> {
    let mut known: HashSet<ValueId> = config.inputs.iter().map(|input| input.value).collect();
    for layer in &config.layers {
        if let Some(&value) = layer.inputs.iter().find(|value| !known.contains(value)) {
            let by = format!("layer {}", layer.name);
            return Err(PlanError::MissingValue { value, by }.into());
        }
        known.extend(&layer.outputs);
    }
    let made: HashSet<ValueId> =
        config.layers.iter().flat_map(|layer| layer.outputs.iter().copied()).collect();
    match config.outputs.iter().find(|value| !made.contains(value)) {
        Some(&value) => {
            Err(PlanError::MissingValue { value, by: "the stage's outputs".into() }.into())
        }
        None => Ok(()),
    }
}

fn freed_after(config: &StageConfig) -> Vec<Vec<ValueId>> {
    let mut needed: HashSet<ValueId> = config.outputs.iter().copied().collect();
    let layers = config.layers.iter().rev();
    let mut freed: Vec<Vec<ValueId>> = layers
        .map(|layer| {
            let values = layer.outputs.iter().chain(&layer.inputs);
            values.copied().filter(|&value| needed.insert(value)).collect()
        })
        .collect();
    freed.reverse();
    freed
}
