//! A compiled layer: its ops with their parameters, the inputs that need gradients, and the plan of
//! recomputation.

use crate::engine::layers::lowered_layer::LoweredLayer;
use crate::engine::layers::op::{Op, SavePolicy};
use crate::engine::layers::op_bindings::{OpBindings, OpParam};
use crate::engine::params::stage_params::{Binding, Params};
use layerspec::Recompute;

/// A layer's ops over numbered slots: first the layer's inputs, then the outputs of the ops.
#[derive(Debug)]
pub(crate) struct CompiledLayer {
    pub(crate) nodes: Vec<OpNode>,
    /// The number of slots.
    pub(crate) slots: usize,
    /// The slots of its outputs.
    pub(crate) outputs: Vec<usize>,
    /// Whether the outputs have gradients.
    pub(crate) has_grad: bool,
    /// The tensors that are saved to recompute the rest. `None` if everything is saved.
    pub(crate) recompute_plan: Option<RecomputePlan>,
}

/// One op with its connections.
#[derive(Debug)]
pub(crate) struct OpNode {
    pub(crate) op: Box<dyn Op>,
    /// Slots.
    pub(crate) inputs: Vec<usize>,
    /// For each input, whether this is its slot's last use in the layer.
    pub(crate) last: Vec<bool>,
    /// The slot of its first output.
    pub(crate) first_output: usize,
    /// The number of tensors that it makes.
    pub(crate) outputs: usize,
    pub(crate) bindings: OpBindings,
}

/// The tensors of a layer that are saved between forward and backward, and those that are
/// recomputed.
#[derive(Debug)]
pub(crate) struct RecomputePlan {
    /// By slot.
    pub(crate) saved_slots: Vec<bool>,
    /// By op: whether it runs again. The others take the tensors that they need from their inputs.
    pub(crate) runs: Vec<bool>,
}

impl CompiledLayer {
    /// Compiles a layer. `needs_input_grad` says for each input whether its gradient is needed.
    pub(crate) fn new(
        lowered: LoweredLayer,
        bindings: &[Binding],
        params: &Params,
        needs_input_grad: &[bool],
        recompute: Recompute,
    ) -> Self {
        let LoweredLayer { nodes: lowered, outputs } = lowered;
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
                bindings: OpBindings {
                    needs_input_grad: lower
                        .inputs
                        .iter()
                        .map(|&slot| slot_needs_grad[slot])
                        .collect(),
                    trains: params.iter().any(|param| param.trained),
                    params,
                },
                op: lower.op,
                inputs: lower.inputs,
                first_output: slot_needs_grad.len(),
                outputs: lower.outputs,
            };
            slot_needs_grad.extend(std::iter::repeat_n(node.bindings.is_active(), node.outputs));
            nodes.push(node);
        }
        let slots = slot_needs_grad.len();
        mark_last_uses(&mut nodes, &outputs, slots);
        let recompute_plan = recompute_plan(recompute, &nodes, slots);
        CompiledLayer {
            has_grad: outputs.iter().any(|&slot| slot_needs_grad[slot]),
            nodes,
            slots,
            outputs,
            recompute_plan,
        }
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

/// Goes back over the ops and collects what each needs for its backward pass.
fn recompute_plan(recompute: Recompute, nodes: &[OpNode], slots: usize) -> Option<RecomputePlan> {
    if recompute == Recompute::None || !nodes.iter().any(|node| node.bindings.is_active()) {
        return None;
    }
    let mut needed = vec![false; slots];
    let mut runs = vec![false; nodes.len()];
    for (node, runs) in nodes.iter().zip(&mut runs).rev() {
        let policy =
            if node.bindings.is_active() { node.op.save_policy() } else { SavePolicy::Nothing };
        let may_run =
            recompute == Recompute::Full || node.op.is_cheap() || policy == SavePolicy::FromForward;
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
