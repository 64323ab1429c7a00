//! Putting a layer together of ops.

use super::dropout::Drop;
use super::{Lower, Lowered, Op};
use layerspec::layers::Linear;

/// The names of a weight and a bias.
pub(super) type Names = [&'static str; 2];

/// The ops so far.
pub(super) struct Ops {
    nodes: Vec<Lower>,
    slots: usize,
    /// Whether what has a bias has one here.
    bias: bool,
}

impl Ops {
    /// None yet, for a layer with so many inputs.
    pub(super) fn new(inputs: usize, bias: bool) -> Self {
        Ops { nodes: Vec::new(), slots: inputs, bias }
    }

    /// Adds an op with its names of parameters and the layer's; the slot of its output.
    pub(super) fn add(
        &mut self,
        op: impl Op + 'static,
        inputs: Vec<usize>,
        params: Vec<(&'static str, &'static str)>,
    ) -> usize {
        self.add_several(op, inputs, params, 1)
    }

    /// The same for an op with so many outputs; the slot of the first.
    pub(super) fn add_several(
        &mut self,
        op: impl Op + 'static,
        inputs: Vec<usize>,
        params: Vec<(&'static str, &'static str)>,
        outputs: usize,
    ) -> usize {
        self.nodes.push(Lower { op: Box::new(op), inputs, outputs, params });
        self.slots += outputs;
        self.slots - outputs
    }

    /// The layer's names for an op's weight and bias.
    pub(super) fn named(&self, [weight, bias]: Names) -> Vec<(&'static str, &'static str)> {
        let mut names = vec![("weight", weight)];
        names.extend(self.bias.then_some(("bias", bias)));
        names
    }

    pub(super) fn linear(&mut self, input: usize, [from, to]: [u64; 2], names: Names) -> usize {
        let linear = Linear { in_features: from, out_features: to, bias: self.bias };
        self.add(linear, vec![input], self.named(names))
    }

    pub(super) fn dropout(&mut self, input: usize, p: f64, purpose: &'static str) -> usize {
        match p {
            0.0 => input,
            p => self.add(Drop::new(p, purpose), vec![input], Vec::new()),
        }
    }

    /// The layer, which gives what is in this slot.
    pub(super) fn giving(self, output: usize) -> Lowered {
        Lowered { nodes: self.nodes, outputs: vec![output] }
    }
}
