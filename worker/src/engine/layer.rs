//! A layer made ready to run: its ops with their parameters, which of their inputs want gradients, and what of it is
//! computed again before backward.

use super::modules::{lower, LoweredLayer, Op, SavePolicy};
use super::own::CustomLayers;
use super::params::{Binding, Params};
use layerspec::Recompute;
use tch::Device;
use tensor::TensorError;

/// A layer's ops over numbered slots: first the layer's inputs, then what the ops make.
#[derive(Debug)]
pub(super) struct CompiledLayer {
    pub(super) nodes: Vec<OpNode>,
    /// The number of slots.
    pub(super) slots: usize,
    /// The slots of its outputs.
    pub(super) outputs: Vec<usize>,
    /// Whether the outputs have gradients.
    pub(super) has_grad: bool,
    /// The tensors saved for recomputing the rest; nothing where everything is kept.
    pub(super) recompute_plan: Option<RecomputePlan>,
}

/// One op with all that it is connected with.
#[derive(Debug)]
pub(super) struct OpNode {
    pub(super) op: Box<dyn Op>,
    /// Slots.
    pub(super) inputs: Vec<usize>,
    /// For each input, whether this is its slot's last use in the layer.
    pub(super) last: Vec<bool>,
    /// The slot of its first output.
    pub(super) first_output: usize,
    /// The number of tensors that it makes.
    pub(super) outputs: usize,
    pub(super) params: Vec<OpParam>,
    /// For each input, whether its gradient is wanted.
    pub(super) needs_input_grad: Vec<bool>,
    /// Whether any of its parameters is trained.
    pub(super) trains: bool,
}

/// A parameter or buffer of an op.
#[derive(Debug)]
pub(super) struct OpParam {
    /// The op's name for it.
    pub(super) role: &'static str,
    /// Its place among the stage's.
    pub(super) index: usize,
    /// Its place among the layer's.
    pub(super) place: usize,
    pub(super) trained: bool,
}

/// The tensors of a layer that are saved between forward and backward, and those that are
/// recomputed.
#[derive(Debug)]
pub(super) struct RecomputePlan {
    /// By slot.
    pub(super) saved_slots: Vec<bool>,
    /// By op: whether it runs again. The others take the tensors that they need from their inputs.
    pub(super) runs: Vec<bool>,
}

impl OpNode {
    /// Whether it has a part in the backward pass.
    pub(super) fn is_active(&self) -> bool {
        self.trains || self.needs_input_grad.contains(&true)
    }
}

impl CompiledLayer {
    /// Makes a layer ready. `needs_input_grad` says for each of its inputs whether the gradient is wanted.
    pub(super) fn new(
        spec: &layerspec::Layer,
        bindings: &[Binding],
        params: &Params,
        needs_input_grad: &[bool],
        (custom_layers, device): (&CustomLayers, Device),
    ) -> Result<Self, TensorError> {
        let LoweredLayer { nodes: lowered, outputs } =
            lower(&spec.kind, spec.inputs.len(), spec.outputs.len(), custom_layers, device)?
                .in_precision(spec.precision);
        let mut slot_needs_grad = needs_input_grad.to_vec();
        let mut nodes = Vec::with_capacity(lowered.len());
        for lower in lowered {
            let param = |&(role, name): &(&'static str, &str)| {
                let place = bindings.iter().position(|binding| binding.name == name)?;
                let index = bindings[place].index;
                Some(OpParam { role, index, place, trained: params.all[index].trained })
            };
            let params: Vec<OpParam> = lower.params.iter().filter_map(param).collect();
            let node = OpNode {
                last: vec![false; lower.inputs.len()],
                needs_input_grad: lower.inputs.iter().map(|&slot| slot_needs_grad[slot]).collect(),
                trains: params.iter().any(|param| param.trained),
                op: lower.op,
                inputs: lower.inputs,
                first_output: slot_needs_grad.len(),
                outputs: lower.outputs,
                params,
            };
            slot_needs_grad.extend(std::iter::repeat_n(node.is_active(), node.outputs));
            nodes.push(node);
        }
        let slots = slot_needs_grad.len();
        mark_last_uses(&mut nodes, &outputs, slots);
        let recompute_plan = recompute_plan(spec.recompute.unwrap_or_default(), &nodes, slots);
        Ok(CompiledLayer {
            has_grad: outputs.iter().any(|&slot| slot_needs_grad[slot]),
            nodes,
            slots,
            outputs,
            recompute_plan,
        })
    }
}

fn mark_last_uses(nodes: &mut [OpNode], outputs: &[usize], slots: usize) {
    let mut used = vec![false; slots];
    outputs.iter().for_each(|&slot| used[slot] = true);
    for node in nodes.iter_mut().rev() {
        for (port, &slot) in node.inputs.iter().enumerate().rev() {
            node.last[port] = !std::mem::replace(&mut used[slot], true);
        }
    }
}

/// Goes back over the ops and asks of each what it must have for its backward pass.
fn recompute_plan(recompute: Recompute, nodes: &[OpNode], slots: usize) -> Option<RecomputePlan> {
    if recompute == Recompute::None || !nodes.iter().any(OpNode::is_active) {
        return None;
    }
    let mut needed = vec![false; slots];
    let mut runs = vec![false; nodes.len()];
    for (node, runs) in nodes.iter().zip(&mut runs).rev() {
        let policy = if node.is_active() { node.op.save_policy() } else { SavePolicy::Nothing };
        let may_run = recompute == Recompute::Full || node.op.is_cheap() || policy == SavePolicy::FromForward;
        let made = &mut needed[node.first_output..node.first_output + node.outputs];
        *runs = may_run && (policy == SavePolicy::FromForward || made.contains(&true));
        if *runs {
            made.fill(false);
        }
        if *runs || policy == SavePolicy::FromInputs {
            node.inputs.iter().for_each(|&slot| needed[slot] = true);
        }
    }
    Some(RecomputePlan { saved_slots: needed, runs })
}
