//! Builds a layer out of ops.

use crate::engine::layers::lowered_layer::{LoweredLayer, LoweredOp};
use crate::engine::layers::op::Op;
use crate::engine::modules::activation::dropout::DropoutOp;
use layerspec::layers::Linear;

/// The names of a weight and a bias.
pub(crate) type WeightBiasNames = [&'static str; 2];

/// The ops so far.
pub(crate) struct LayerBuilder {
    nodes: Vec<LoweredOp>,
    slots: usize,
    /// Whether ops that can have a bias have one.
    bias: bool,
}

impl LayerBuilder {
    /// An empty builder for a layer with this number of inputs.
    pub(crate) fn new(inputs: usize, bias: bool) -> Self {
        LayerBuilder { nodes: Vec::new(), slots: inputs, bias }
    }

    /// Adds an op with the names of its parameters. Returns the slot of its output.
    pub(crate) fn add(
        &mut self,
        op: impl Op + 'static,
        inputs: Vec<usize>,
        params: Vec<(&'static str, &'static str)>,
    ) -> usize {
        self.add_multi_output(op, inputs, params, 1)
    }

    /// The same for an op with several outputs. Returns the slot of the first.
    pub(crate) fn add_multi_output(
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
    pub(crate) fn param_names(
        &self,
        [weight, bias]: WeightBiasNames,
    ) -> Vec<(&'static str, &'static str)> {
        let mut names = vec![("weight", weight)];
        names.extend(self.bias.then_some(("bias", bias)));
        names
    }

    /// Sets whether ops that are added from now on have a bias, if they can have one.
    pub(crate) fn set_bias(&mut self, bias: bool) {
        self.bias = bias;
    }

    pub(crate) fn linear(
        &mut self,
        input: usize,
        [from, to]: [u64; 2],
        names: WeightBiasNames,
    ) -> usize {
        let (bias, transposed) = (self.bias, false);
        let linear = Linear { in_features: from, out_features: to, bias, transposed };
        self.add(linear, vec![input], self.param_names(names))
    }

    pub(crate) fn dropout(&mut self, input: usize, p: f64, purpose: &'static str) -> usize {
        match p {
            0.0 => input,
            p => self.add(DropoutOp::new(p, purpose), vec![input], Vec::new()),
        }
    }

    /// The layer, whose output is in this slot.
    pub(crate) fn finish(self, output: usize) -> LoweredLayer {
        LoweredLayer { nodes: self.nodes, outputs: vec![output] }
    }
}
