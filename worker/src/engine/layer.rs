//! A layer made ready to run: its ops with their parameters, which of their inputs want gradients, and what of it is
//! computed again before backward.

use super::modules::{lower, Keeps, Lowered, Op};
use super::own::OwnLayers;
use super::params::{Binding, Params};
use layerspec::Recompute;
use tch::Device;
use tensor::TensorError;

/// A layer's ops over numbered slots: first the layer's inputs, then what the ops make.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) nodes: Vec<Node>,
    /// How many slots there are.
    pub(super) slots: usize,
    /// The slots of its outputs.
    pub(super) outputs: Vec<usize>,
    /// Whether the outputs have gradients.
    pub(super) has_grad: bool,
    /// What is kept for computing the rest again; nothing where everything is kept.
    pub(super) again: Option<Again>,
}

/// One op with all that it is connected with.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) op: Box<dyn Op>,
    /// Slots.
    pub(super) inputs: Vec<usize>,
    /// For each input, whether this is its slot's last use in the layer.
    pub(super) last: Vec<bool>,
    /// The slot of its first output.
    pub(super) first_output: usize,
    /// How many it makes.
    pub(super) outputs: usize,
    pub(super) params: Vec<NodeParam>,
    /// For each input, whether its gradient is wanted.
    pub(super) wants: Vec<bool>,
    /// Whether any of its parameters is trained.
    pub(super) trains: bool,
}

/// A parameter or buffer of an op.
#[derive(Debug)]
pub(super) struct NodeParam {
    /// The op's name for it.
    pub(super) role: &'static str,
    /// Its place among the stage's.
    pub(super) index: usize,
    /// Its place among the layer's.
    pub(super) place: usize,
    pub(super) trained: bool,
}

/// What of a layer is kept between forward and backward, and what is computed again.
#[derive(Debug)]
pub(super) struct Again {
    /// By slot.
    pub(super) kept: Vec<bool>,
    /// By op: whether it runs again. What the others need they have from their inputs.
    pub(super) runs: Vec<bool>,
}

impl Node {
    /// Whether it has a part in the backward pass.
    pub(super) fn is_active(&self) -> bool {
        self.trains || self.wants.contains(&true)
    }
}

impl Layer {
    /// Makes a layer ready. `wants` says for each of its inputs whether the gradient is wanted.
    pub(super) fn new(
        spec: &layerspec::Layer,
        bindings: &[Binding],
        params: &Params,
        wants: &[bool],
        (own, device): (&OwnLayers, Device),
    ) -> Result<Self, TensorError> {
        let Lowered { nodes: lowered, outputs } =
            lower(&spec.kind, spec.inputs.len(), spec.outputs.len(), own, device)?.in_precision(spec.precision);
        let mut wants = wants.to_vec();
        let mut nodes = Vec::with_capacity(lowered.len());
        for lower in lowered {
            let param = |&(role, name): &(&'static str, &str)| {
                let place = bindings.iter().position(|binding| binding.name == name)?;
                let index = bindings[place].index;
                Some(NodeParam { role, index, place, trained: params.all[index].trained })
            };
            let params: Vec<NodeParam> = lower.params.iter().filter_map(param).collect();
            let node = Node {
                last: vec![false; lower.inputs.len()],
                wants: lower.inputs.iter().map(|&slot| wants[slot]).collect(),
                trains: params.iter().any(|param| param.trained),
                op: lower.op,
                inputs: lower.inputs,
                first_output: wants.len(),
                outputs: lower.outputs,
                params,
            };
            wants.extend(std::iter::repeat_n(node.is_active(), node.outputs));
            nodes.push(node);
        }
        let slots = wants.len();
        mark_last_uses(&mut nodes, &outputs, slots);
        let again = again(spec.recompute.unwrap_or_default(), &nodes, slots);
        Ok(Layer { has_grad: outputs.iter().any(|&slot| wants[slot]), nodes, slots, outputs, again })
    }
}

fn mark_last_uses(nodes: &mut [Node], outputs: &[usize], slots: usize) {
    let mut used = vec![false; slots];
    outputs.iter().for_each(|&slot| used[slot] = true);
    for node in nodes.iter_mut().rev() {
        for (port, &slot) in node.inputs.iter().enumerate().rev() {
            node.last[port] = !std::mem::replace(&mut used[slot], true);
        }
    }
}

/// Goes back over the ops and asks of each what it must have for its backward pass.
fn again(recompute: Recompute, nodes: &[Node], slots: usize) -> Option<Again> {
    if recompute == Recompute::None || !nodes.iter().any(Node::is_active) {
        return None;
    }
    let mut needed = vec![false; slots];
    let mut runs = vec![false; nodes.len()];
    for (node, runs) in nodes.iter().zip(&mut runs).rev() {
        let keeps = if node.is_active() { node.op.keeps() } else { Keeps::Nothing };
        let may_run = recompute == Recompute::Full || node.op.is_cheap() || keeps == Keeps::OfItsRun;
        let made = &mut needed[node.first_output..node.first_output + node.outputs];
        *runs = may_run && (keeps == Keeps::OfItsRun || made.contains(&true));
        if *runs {
            made.fill(false);
        }
        if *runs || keeps == Keeps::Inputs {
            node.inputs.iter().for_each(|&slot| needed[slot] = true);
        }
    }
    Some(Again { kept: needed, runs })
}
