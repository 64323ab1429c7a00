//! Putting a layer together of ops.

use super::dropout::DropoutOp;
use super::{LoweredLayer, LoweredOp, Op};
use layerspec::layers::Linear;

/// The names of a weight and a bias.
pub(super) type WeightBiasNames = [&'static str; 2];

/// The ops so far.
pub(super) struct LayerBuilder {
    nodes: Vec<LoweredOp>,
    slots: usize,
    /// Whether what has a bias has one here.
    bias: bool,
}

impl LayerBuilder {
    /// None yet, for a layer with so many inputs.
    pub(super) fn new(inputs: usize, bias: bool) -> Self {
        LayerBuilder { nodes: Vec::new(), slots: inputs, bias }
    }

    /// Adds an op with its names of parameters and the layer's; the slot of its output.
    pub(super) fn add(
        &mut self,
        op: impl Op + 'static,
        inputs: Vec<usize>,
        params: Vec<(&'static str, &'static str)>,
    ) -> usize {
        self.add_multi_output(op, inputs, params, 1)
    }

    /// The same for an op with so many outputs; the slot of the first.
    pub(super) fn add_multi_output(
        &mut self,
        op: impl Op + 'static,
        inputs: Vec<usize>,
        params: Vec<(&'static str, &'static str)>,
        outputs: usize,
    ) -> usize {
        self.nodes.push(LoweredOp { op: Box::new(op), inputs, outputs, params });
        self.slots += outputs;
        self.slots - outputs
    }

    /// The layer's names for an op's weight and bias.
    pub(super) fn param_names(&self, [weight, bias]: WeightBiasNames) -> Vec<(&'static str, &'static str)> {
        let mut names = vec![("weight", weight)];
        names.extend(self.bias.then_some(("bias", bias)));
        names
    }

    pub(super) fn linear(&mut self, input: usize, [from, to]: [u64; 2], names: WeightBiasNames) -> usize {
        let linear = Linear { in_features: from, out_features: to, bias: self.bias };
        self.add(linear, vec![input], self.param_names(names))
    }

    pub(super) fn dropout(&mut self, input: usize, p: f64, purpose: &'static str) -> usize {
        match p {
            0.0 => input,
            p => self.add(DropoutOp::new(p, purpose), vec![input], Vec::new()),
        }
    }

    /// The layer, which gives what is in this slot.
    pub(super) fn finish(self, output: usize) -> LoweredLayer {
        LoweredLayer { nodes: self.nodes, outputs: vec![output] }
    }
}
