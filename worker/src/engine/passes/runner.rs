//! One pass over the layers of a stage: its borrowed view of the stage, and the run of each op.

use crate::engine::config::{Mode, Pass};
use crate::engine::error::layer_error;
use crate::engine::layers::kv_cache::{KvCache, OpKey};
use crate::engine::layers::op::{ForwardOutput, SavedForBackward};
use crate::engine::layers::op_context::{OpContext, PassPurpose};
use crate::engine::layers::random_source::RandomSource;
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::running_statistics::RunningStatistics;
use crate::engine::params::stage_params::Params;
use crate::engine::passes::compiled_layer::{CompiledLayer, OpNode};
use crate::engine::passes::compiled_stage::CompiledStage;
use tch::Tensor;
use tensor::TensorError;

/// A borrowed view of a stage, made for each pass. It changes nothing but the tensors that it is
/// given.
#[derive(Clone, Copy)]
pub(crate) struct PassRunner<'a> {
    pub(super) stage: &'a CompiledStage,
    pub(super) params: &'a Params,
    statistics: &'a RunningStatistics,
    pub(super) kv_cache: &'a KvCache,
}

/// One layer in one pass.
#[derive(Clone, Copy)]
pub(super) struct LayerCall<'a> {
    /// The layer's place in the stage.
    pub(super) place: usize,
    pub(super) pass: &'a Pass,
    pub(super) purpose: PassPurpose,
}

impl<'a> PassRunner<'a> {
    pub(crate) fn new(
        stage: &'a CompiledStage,
        params: &'a ParamStore,
        statistics: &'a RunningStatistics,
        kv_cache: &'a KvCache,
    ) -> Self {
        PassRunner { stage, params: params.params(), statistics, kv_cache }
    }

    /// Runs a layer's ops one after the other. A slot is freed at its last use, unless `stay` keeps
    /// it.
    pub(super) fn run_ops(
        &self,
        call: LayerCall<'_>,
        slots: &mut Vec<Option<Tensor>>,
        stay: impl Fn(usize) -> bool,
    ) -> Result<Vec<SavedForBackward>, TensorError> {
        let layer = &self.stage.layers[call.place];
        slots.resize_with(layer.slots, || None);
        let mut all = Vec::with_capacity(layer.nodes.len());
        for node in &layer.nodes {
            all.push(self.run_op(call, node, slots, &stay)?);
        }
        Ok(all)
    }

    fn run_op(
        &self,
        call: LayerCall<'_>,
        node: &OpNode,
        slots: &mut [Option<Tensor>],
        stay: impl Fn(usize) -> bool,
    ) -> Result<SavedForBackward, TensorError> {
        let inputs = node.inputs.iter().zip(&node.last).map(|(&slot, &last)| {
            let tensor = if last && !stay(slot) {
                slots[slot].take()
            } else {
                slots[slot].as_ref().map(Tensor::shallow_clone)
            };
            tensor.ok_or_else(|| empty_slot(slot))
        });
        let inputs = inputs.collect::<Result<_, _>>()?;
        let ForwardOutput { outputs, saved } =
            node.op.forward(&self.op_context(call, node), inputs)?;
        if outputs.len() != node.outputs {
            let (made, expected) = (outputs.len(), node.outputs);
            return Err(layer_error(format!("made {made} outputs instead of {expected}")));
        }
        for (slot, output) in slots[node.first_output..].iter_mut().zip(outputs) {
            *slot = Some(output);
        }
        Ok(saved)
    }

    /// Recomputes the saved tensors of each op of a layer from the slots that the layer saved.
    pub(super) fn recompute_saved(
        &self,
        place: usize,
        pass: &Pass,
        mut slots: Vec<Option<Tensor>>,
    ) -> Result<Vec<SavedForBackward>, TensorError> {
        let CompiledLayer { nodes, recompute_plan: Some(plan), .. } = &self.stage.layers[place]
        else {
            return Err(layer_error("has no recompute plan"));
        };
        let call = LayerCall { place, pass, purpose: PassPurpose::Recompute };
        let mut all = Vec::with_capacity(nodes.len());
        for (node, &runs) in nodes.iter().zip(&plan.runs) {
            let saved = if runs {
                self.run_op(call, node, &mut slots, |_| true)?
            } else {
                let inputs: Option<Vec<Tensor>> = node
                    .inputs
                    .iter()
                    .map(|&slot| Some(slots[slot].as_ref()?.shallow_clone()))
                    .collect();
                match inputs {
                    Some(inputs) => node.op.save_inputs(&self.op_context(call, node), &inputs)?,
                    None => SavedForBackward::default(),
                }
            };
            all.push(saved);
        }
        Ok(all)
    }

    pub(super) fn op_context<'c>(&'c self, call: LayerCall<'c>, node: &'c OpNode) -> OpContext<'c> {
        let config = &self.stage.config;
        let LayerCall { place, pass, purpose } = call;
        let spec = &config.layers[place];
        let kv_cache = match pass.mode {
            Mode::Eval => {
                self.kv_cache.for_op(spec.id, OpKey { layer: place, slot: node.first_output })
            }
            Mode::Train => None,
        };
        let batch_statistics = if pass.defers_statistics() {
            self.statistics.for_layer(pass.key, place)
        } else {
            None
        };
        OpContext {
            params: &self.params.all,
            bindings: &node.bindings,
            mode: pass.mode,
            random: RandomSource::new(config.seed, pass, &spec.name),
            device: config.device,
            purpose,
            substitute_params: &[],
            kv_cache,
            batch_statistics,
        }
    }
}

pub(super) fn empty_slot(slot: usize) -> TensorError {
    layer_error(format!("nothing is in its slot {slot}"))
}
