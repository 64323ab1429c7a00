//! The forward pass: layer after layer, keeping what its own backward needs.

use super::call::{OpContext, PassPurpose};
use super::error::{in_layer, EngineError, LayerPhase};
use super::layer::{CompiledLayer, OpNode};
use super::layout::canonical_layout;
use super::modules::{ForwardOutput, SavedForBackward};
use super::stage::{Mode, Pass};
use super::Engine;
use layerspec::{LayerKind, ValueId};
use std::collections::HashMap;
use tch::Tensor;
use tensor::{Attempt, TensorError};

/// The saved state of a microbatch between forward and backward.
#[derive(Debug)]
pub(super) struct SavedMicrobatch {
    pub(super) pass: Pass,
    /// How often the stage's parameters had changed.
    pub(super) version: u64,
    /// By layer of the stage; none for a layer through which no gradient flows.
    pub(super) layers: Vec<Option<SavedLayer>>,
    /// By output of the stage.
    pub(super) output_sizes: Vec<Vec<i64>>,
    /// The gradient of the loss, by output of the stage.
    pub(super) loss_grads: HashMap<usize, Tensor>,
}

/// The saved state of one layer.
#[derive(Debug)]
pub(super) enum SavedLayer {
    /// The saved tensors of each op.
    Ops(Vec<SavedForBackward>),
    /// The slots from which the others are computed again.
    Slots(Vec<Option<Tensor>>),
}

impl Engine {
    /// Runs the stage's layers on one microbatch: the values of [`super::StageConfig::inputs`] in,
    /// those of [`super::StageConfig::outputs`] out, each in that order, contiguous, on the stage's
    /// device, without a graph.
    ///
    /// In [`Mode::Train`] keeps what [`Engine::backward`] needs, under the pass's key. The tensors
    /// that come out may share memory with what is kept: do not write to them. Neither to those that
    /// went in, while any reference to them is left.
    pub fn forward(&mut self, pass: &Pass, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, EngineError> {
        if pass.mode == Mode::Train
            && (self.saved.contains_key(&pass.key) || self.pending_weight_grads.contains_key(&pass.key))
        {
            return Err(EngineError::AlreadyForwarded { key: pass.key });
        }
        self.check_gathered()?;
        let mut values = self.inputs_on_device(inputs)?;
        if pass.defers_statistics() {
            self.statistics.reserve(pass.key, &self.params)?;
        } else if pass.mode == Mode::Train {
            self.statistics.begin_batch(pass.key.batch, &self.params)?;
        }
        let saved = tch::no_grad(|| {
            let layers = (0..self.layers.len()).map(|place| {
                let saved = self.run_or_reuse(place, pass, &mut values)?;
                for value in &self.freed_after[place] {
                    values.remove(value);
                }
                Ok(saved)
            });
            layers.collect::<Result<Vec<_>, EngineError>>()
        })?;
        let outputs = self.stage.outputs.iter().map(|value| match values.get(value) {
            Some(tensor) => Ok(tensor.shallow_clone()),
            None => Err(EngineError::MissingValue { value: *value, by: "the stage's outputs".into() }),
        });
        let outputs: Vec<Tensor> = outputs.collect::<Result<_, _>>()?;
        if pass.mode == Mode::Train {
            let output_sizes = outputs.iter().map(Tensor::size).collect();
            let (pass, version) = (*pass, self.version);
            let saved = SavedMicrobatch { pass, version, layers: saved, output_sizes, loss_grads: HashMap::new() };
            self.saved.insert(pass.key, saved);
        }
        Ok(outputs)
    }

    fn inputs_on_device(&self, inputs: Vec<Tensor>) -> Result<HashMap<ValueId, Tensor>, EngineError> {
        let (expected, got) = (self.stage.inputs.len(), inputs.len());
        if expected != got {
            return Err(EngineError::CountMismatch { what: "inputs", expected, got });
        }
        let arrive = |tensor: Tensor| -> Result<Tensor, TensorError> {
            let tensor = if tensor.requires_grad() { tensor.f_detach()? } else { tensor };
            if tensor.device() == self.stage.device {
                return canonical_layout(tensor);
            }
            canonical_layout(tensor.f_to_device(self.stage.device).attempt("moving an input to the device")?)
        };
        let arrivals = self.stage.inputs.iter().zip(inputs);
        arrivals.map(|(input, tensor)| Ok((input.value, arrive(tensor)?))).collect()
    }

    /// Runs a layer, or takes what it made of the same inputs in the pass before.
    fn run_or_reuse(
        &self,
        place: usize,
        pass: &Pass,
        values: &mut HashMap<ValueId, Tensor>,
    ) -> Result<Option<SavedLayer>, EngineError> {
        let spec = &self.stage.layers[place];
        if let Some(made) = self.kv_cache.reused_outputs(spec).map_err(in_layer(spec, LayerPhase::Forward))? {
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
        values: &mut HashMap<ValueId, Tensor>,
    ) -> Result<Option<SavedLayer>, EngineError> {
        let (spec, layer) = (&self.stage.layers[place], &self.layers[place]);
        let mut slots: Vec<Option<Tensor>> = Vec::with_capacity(layer.slots);
        for (port, value) in spec.inputs.iter().enumerate() {
            let by = || format!("layer {}", spec.name);
            // The last use takes the tensor along, so that the op may work in its memory.
            let is_last = self.freed_after[place].contains(value) && !spec.inputs[port + 1..].contains(value);
            let tensor = if is_last { values.remove(value) } else { values.get(value).map(Tensor::shallow_clone) };
            slots.push(Some(tensor.ok_or_else(|| EngineError::MissingValue { value: *value, by: by() })?));
        }
        let failed = || in_layer(spec, LayerPhase::Forward);
        let infinite_inputs = self.checks_finite.then(|| self.check_inputs_finite(place, &slots)).transpose()?;
        let backward = pass.mode == Mode::Train && layer.has_grad;
        let saved = match &layer.recompute_plan {
            Some(recompute_plan) if backward => {
                let keep = |slot: usize| recompute_plan.saved_slots.get(slot).copied().unwrap_or(false);
                self.run_ops(place, pass, PassPurpose::OutputsOnly, &mut slots, keep).map_err(failed())?;
                let copies = slots.iter().enumerate().map(|(slot, tensor)| match tensor {
                    Some(tensor) if keep(slot) => Some(tensor.shallow_clone()),
                    _ => None,
                });
                Some(SavedLayer::Slots(copies.collect()))
            }
            _ => {
                let purpose = if backward { PassPurpose::Backward } else { PassPurpose::OutputsOnly };
                let ops = self.run_ops(place, pass, purpose, &mut slots, |_| false).map_err(failed())?;
                backward.then_some(SavedLayer::Ops(ops))
            }
        };
        if layer.outputs.len() != spec.outputs.len() {
            let problem = format!("made {} outputs, the model has {}", layer.outputs.len(), spec.outputs.len());
            return Err(failed()(TensorError::invalid("the layer", problem)));
        }
        for (value, &slot) in spec.outputs.iter().zip(&layer.outputs) {
            let output = slots[slot].take().ok_or_else(|| failed()(no_slot(slot)))?;
            let output = canonical_layout(output).map_err(failed())?;
            if let Some(infinite_inputs) = infinite_inputs {
                check_output_finite(spec, &output, infinite_inputs)?;
            }
            values.insert(*value, output);
        }
        Ok(saved)
    }

    /// That what goes into a layer is fine; whether there are infinities, as in masks.
    fn check_inputs_finite(&self, place: usize, slots: &[Option<Tensor>]) -> Result<bool, EngineError> {
        let spec = &self.stage.layers[place];
        let mut infinite = false;
        for tensor in slots.iter().flatten() {
            match finiteness(spec, tensor)? {
                Finiteness::Nan => return Err(not_finite(spec, "what comes into it has NaN")),
                Finiteness::Infinite => infinite = true,
                Finiteness::Finite => {}
            }
        }
        for binding in &self.params.bindings[place] {
            let param = &self.params.all[binding.index];
            match finiteness(spec, &param.tensor)? {
                Finiteness::Nan => return Err(not_finite(spec, format!("`{}` has NaN; {RESUME_ADVICE}", param.name))),
                Finiteness::Infinite if param.trained => {
                    return Err(not_finite(spec, format!("`{}` has infinities; {RESUME_ADVICE}", param.name)));
                }
                Finiteness::Infinite => infinite = true,
                Finiteness::Finite => {}
            }
        }
        Ok(infinite)
    }

    /// Runs a layer's ops one after the other. A slot is freed at its last use, unless it is to `stay`.
    fn run_ops(
        &self,
        place: usize,
        pass: &Pass,
        purpose: PassPurpose,
        slots: &mut Vec<Option<Tensor>>,
        stay: impl Fn(usize) -> bool,
    ) -> Result<Vec<SavedForBackward>, TensorError> {
        let layer = &self.layers[place];
        slots.resize_with(layer.slots, || None);
        let mut all = Vec::with_capacity(layer.nodes.len());
        for node in &layer.nodes {
            all.push(self.run_op(place, node, pass, purpose, slots, &stay)?);
        }
        Ok(all)
    }

    fn run_op(
        &self,
        place: usize,
        node: &OpNode,
        pass: &Pass,
        purpose: PassPurpose,
        slots: &mut [Option<Tensor>],
        stay: impl Fn(usize) -> bool,
    ) -> Result<SavedForBackward, TensorError> {
        let inputs = node.inputs.iter().zip(&node.last).map(|(&slot, &last)| {
            let tensor =
                if last && !stay(slot) { slots[slot].take() } else { slots[slot].as_ref().map(Tensor::shallow_clone) };
            tensor.ok_or_else(|| no_slot(slot))
        });
        let inputs = inputs.collect::<Result<_, _>>()?;
        let ForwardOutput { outputs, saved } = node.op.forward(&self.op_context(place, node, pass, purpose), inputs)?;
        if outputs.len() != node.outputs {
            let problem = format!("made {} outputs instead of {}", outputs.len(), node.outputs);
            return Err(TensorError::invalid("the layer", problem));
        }
        for (slot, output) in slots[node.first_output..].iter_mut().zip(outputs) {
            *slot = Some(output);
        }
        Ok(saved)
    }

    /// The saved tensors of each op of a layer, from the slots that the layer saved.
    pub(super) fn recompute_saved(
        &self,
        place: usize,
        pass: &Pass,
        mut slots: Vec<Option<Tensor>>,
    ) -> Result<Vec<SavedForBackward>, TensorError> {
        let CompiledLayer { nodes, recompute_plan: Some(recompute_plan), .. } = &self.layers[place] else {
            return Err(TensorError::invalid("the layer", "was not to be computed again"));
        };
        let mut all = Vec::with_capacity(nodes.len());
        for (node, &runs) in nodes.iter().zip(&recompute_plan.runs) {
            let saved = if runs {
                self.run_op(place, node, pass, PassPurpose::Recompute, &mut slots, |_| true)?
            } else {
                let inputs: Option<Vec<Tensor>> =
                    node.inputs.iter().map(|&slot| Some(slots[slot].as_ref()?.shallow_clone())).collect();
                match inputs {
                    Some(inputs) => {
                        node.op.save_inputs(&self.op_context(place, node, pass, PassPurpose::Recompute), &inputs)?
                    }
                    None => SavedForBackward::default(),
                }
            };
            all.push(saved);
        }
        Ok(all)
    }

    pub(super) fn op_context<'a>(
        &'a self,
        place: usize,
        node: &'a OpNode,
        pass: &'a Pass,
        purpose: PassPurpose,
    ) -> OpContext<'a> {
        let spec = &self.stage.layers[place];
        let (seed, device) = (self.stage.seed, self.stage.device);
        let kv_cache = match pass.mode {
            Mode::Eval => self.kv_cache.for_op(spec.id, (place, node.first_output)),
            Mode::Train => None,
        };
        let batch_statistics = if pass.defers_statistics() { self.statistics.for_layer(pass.key, place) } else { None };
        let (params, layer, substitute_params) = (&self.params.all, &spec.name, &[]);
        OpContext { params, node, pass, layer, seed, device, purpose, substitute_params, kv_cache, batch_statistics }
    }
}

/// Of weights that are no numbers.
const RESUME_ADVICE: &str = "it was made so before this step, so go on from a checkpoint before that";

/// The kinds of numbers in a tensor.
enum Finiteness {
    Finite,
    Infinite,
    Nan,
}

fn finiteness(layer: &layerspec::Layer, tensor: &Tensor) -> Result<Finiteness, EngineError> {
    let find = || -> Result<Finiteness, tch::TchError> {
        let any = |found: Tensor| Ok::<_, tch::TchError>(found.f_any()?.f_int64_value(&[])? != 0);
        let tensor = tensor.f_detach()?;
        Ok(match tensor.f_is_floating_point()? {
            true if any(tensor.f_isnan()?)? => Finiteness::Nan,
            true if any(tensor.f_isinf()?)? => Finiteness::Infinite,
            _ => Finiteness::Finite,
        })
    };
    find().map_err(|e| in_layer(layer, LayerPhase::Forward)(e.into()))
}

/// That what a layer makes is fine: infinities are where some came in, as in a mask, or are made on purpose.
fn check_output_finite(layer: &layerspec::Layer, made: &Tensor, infinite_inputs: bool) -> Result<(), EngineError> {
    let on_purpose = infinite_inputs || matches!(layer.kind, LayerKind::MaskedFill(_));
    let what = match finiteness(layer, made)? {
        Finiteness::Nan if infinite_inputs => "what it makes has NaN; what goes into it has infinities",
        Finiteness::Nan => "what it makes has NaN; what goes into it is finite",
        Finiteness::Infinite if !on_purpose => "what it makes has infinities; what goes into it is finite",
        Finiteness::Infinite | Finiteness::Finite => return Ok(()),
    };
    Err(not_finite(layer, what))
}

fn not_finite(layer: &layerspec::Layer, what: impl Into<String>) -> EngineError {
    EngineError::NotFinite { layer: layer.name.clone(), kind: layer.kind.name(), what: what.into() }
}

fn no_slot(slot: usize) -> TensorError {
    TensorError::invalid("the layer", format!("nothing is in its slot {slot}"))
}
