use super::attention::Attention;
use super::dropout::Drop;
use super::join::Residual;
use super::{Lower, Lowered, Op};
use layerspec::layers::{Activation, Approximate, LayerNorm, Linear, ReLU, TransformerEncoderLayer, GELU};

/// The layer as ops, in PyTorch's order.
pub(super) fn lower(layer: &TransformerEncoderLayer) -> Lowered {
    let mut ops = Ops { layer, nodes: Vec::new(), slots: 1 };
    let input = 0;
    let output = if layer.norm_first {
        let normed = ops.norm(input, NORM_1);
        let attended = ops.attention(normed);
        let middle = ops.add(Box::new(Residual), vec![input, attended], &[]);
        let normed = ops.norm(middle, NORM_2);
        let fed = ops.feed_forward(normed);
        ops.add(Box::new(Residual), vec![middle, fed], &[])
    } else {
        let attended = ops.attention(input);
        let sum = ops.add(Box::new(Residual), vec![input, attended], &[]);
        let middle = ops.norm(sum, NORM_1);
        let fed = ops.feed_forward(middle);
        let sum = ops.add(Box::new(Residual), vec![middle, fed], &[]);
        ops.norm(sum, NORM_2)
    };
    Lowered { nodes: ops.nodes, outputs: vec![output] }
}

/// The names of a weight and a bias.
type Names = [&'static str; 2];
const IN_PROJ: Names = ["self_attn.in_proj_weight", "self_attn.in_proj_bias"];
const OUT_PROJ: Names = ["self_attn.out_proj.weight", "self_attn.out_proj.bias"];
const LINEAR_1: Names = ["linear1.weight", "linear1.bias"];
const LINEAR_2: Names = ["linear2.weight", "linear2.bias"];
const NORM_1: Names = ["norm1.weight", "norm1.bias"];
const NORM_2: Names = ["norm2.weight", "norm2.bias"];

struct Ops<'a> {
    layer: &'a TransformerEncoderLayer,
    nodes: Vec<Lower>,
    slots: usize,
}

impl Ops<'_> {
    /// Adds an op; the slot of its output.
    fn add(&mut self, op: Box<dyn Op>, inputs: Vec<usize>, names: &[&'static str]) -> usize {
        let params = ["weight", "bias"].into_iter().zip(names.iter().copied()).collect();
        self.nodes.push(Lower { op, inputs, outputs: 1, params });
        self.slots += 1;
        self.slots - 1
    }

    fn names(&self, names: Names) -> Vec<&'static str> {
        names[..if self.layer.bias { 2 } else { 1 }].to_vec()
    }

    fn norm(&mut self, input: usize, names: Names) -> usize {
        let (eps, bias) = (self.layer.layer_norm_eps, self.layer.bias);
        let norm = LayerNorm { normalized_shape: vec![self.layer.d_model], eps, elementwise_affine: true, bias };
        self.add(Box::new(norm), vec![input], &self.names(names))
    }

    fn linear(&mut self, input: usize, [from, to]: [u64; 2], names: Names) -> usize {
        let linear = Linear { in_features: from, out_features: to, bias: self.layer.bias };
        self.add(Box::new(linear), vec![input], &self.names(names))
    }

    fn dropout(&mut self, input: usize, purpose: &'static str) -> usize {
        match self.layer.dropout {
            0.0 => input,
            p => self.add(Box::new(Drop::new(p, purpose)), vec![input], &[]),
        }
    }

    fn attention(&mut self, input: usize) -> usize {
        let &TransformerEncoderLayer { d_model, nhead, batch_first, dropout, .. } = self.layer;
        let packed = self.linear(input, [d_model, 3 * d_model], IN_PROJ);
        let heads = i64::try_from(nhead).unwrap_or(i64::MAX);
        let attended = self.add(Box::new(Attention::new(heads, batch_first, dropout)), vec![packed], &[]);
        let projected = self.linear(attended, [d_model, d_model], OUT_PROJ);
        self.dropout(projected, "dropout1")
    }

    fn feed_forward(&mut self, input: usize) -> usize {
        let &TransformerEncoderLayer { d_model, dim_feedforward, .. } = self.layer;
        let wide = self.linear(input, [d_model, dim_feedforward], LINEAR_1);
        let activation: Box<dyn Op> = match self.layer.activation {
            Activation::Relu => Box::new(ReLU {}),
            Activation::Gelu => Box::new(GELU { approximate: Approximate::None }),
        };
        let active = self.add(activation, vec![wide], &[]);
        let dropped = self.dropout(active, "dropout");
        let narrow = self.linear(dropped, [dim_feedforward, d_model], LINEAR_2);
        self.dropout(narrow, "dropout2")
    }
}
