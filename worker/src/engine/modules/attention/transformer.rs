//! Encoder and decoder layers as ops, in PyTorch's order.

use crate::engine::layers::lowered_layer::LoweredLayer;
use crate::engine::modules::attention::heads::{Attention, AttentionHeads, Scores};
use crate::engine::modules::attention::multihead_attention::project;
use crate::engine::modules::builder::{LayerBuilder, WeightBiasNames};
use crate::engine::modules::shape::join::Residual;
use layerspec::layers::{
    Activation, Approximate, LayerNorm, ReLU, TransformerDecoderLayer, TransformerEncoderLayer,
    GELU,
};

const SELF_ATTN: [WeightBiasNames; 2] = [
    ["self_attn.in_proj_weight", "self_attn.in_proj_bias"],
    ["self_attn.out_proj.weight", "self_attn.out_proj.bias"],
];
const CROSS_ATTN: [WeightBiasNames; 2] = [
    ["multihead_attn.in_proj_weight", "multihead_attn.in_proj_bias"],
    ["multihead_attn.out_proj.weight", "multihead_attn.out_proj.bias"],
];
const LINEAR_1: WeightBiasNames = ["linear1.weight", "linear1.bias"];
const LINEAR_2: WeightBiasNames = ["linear2.weight", "linear2.bias"];
const NORM_1: WeightBiasNames = ["norm1.weight", "norm1.bias"];
const NORM_2: WeightBiasNames = ["norm2.weight", "norm2.bias"];
const NORM_3: WeightBiasNames = ["norm3.weight", "norm3.bias"];

/// A builder with the parts of either layer.
macro_rules! parts {
    ($layer:expr, $inputs:expr) => {
        TransformerBuilder {
            ops: LayerBuilder::new($inputs, $layer.bias),
            d_model: $layer.d_model,
            nhead: $layer.nhead,
            dim_feedforward: $layer.dim_feedforward,
            dropout: $layer.dropout,
            activation: $layer.activation,
            layer_norm_eps: $layer.layer_norm_eps,
            batch_first: $layer.batch_first,
            norm_first: $layer.norm_first,
            bias: $layer.bias,
        }
    };
}

pub(crate) fn lower_encoder(layer: &TransformerEncoderLayer, inputs: usize) -> LoweredLayer {
    let mut parts = parts!(layer, inputs);
    let masks = Masks {
        causal: layer.is_causal,
        mask: layer.src_mask.then_some(1),
        padding: layer.src_key_padding_mask.then_some(inputs.saturating_sub(1)),
    };
    let middle =
        parts.residual_block(0, NORM_1, |parts, input| parts.self_attention(input, &masks));
    let output =
        parts.residual_block(middle, NORM_2, |parts, input| parts.feed_forward(input, "dropout2"));
    parts.ops.finish(output)
}

pub(crate) fn lower_decoder(layer: &TransformerDecoderLayer, inputs: usize) -> LoweredLayer {
    let mut parts = parts!(layer, inputs);
    let names = layer.masks();
    let slot = |mask: &str| names.iter().position(|name| *name == mask).map(|index| 2 + index);
    let self_masks = Masks {
        causal: layer.tgt_is_causal,
        mask: slot("tgt_mask"),
        padding: slot("tgt_key_padding_mask"),
    };
    let cross_masks = Masks {
        causal: false,
        mask: slot("memory_mask"),
        padding: slot("memory_key_padding_mask"),
    };
    let first =
        parts.residual_block(0, NORM_1, |parts, input| parts.self_attention(input, &self_masks));
    let second = parts
        .residual_block(first, NORM_2, |parts, input| parts.cross_attention(input, &cross_masks));
    let output =
        parts.residual_block(second, NORM_3, |parts, input| parts.feed_forward(input, "dropout3"));
    parts.ops.finish(output)
}

/// The masks of an attention: their slots, and whether it is causal.
struct Masks {
    causal: bool,
    mask: Option<usize>,
    padding: Option<usize>,
}

struct TransformerBuilder {
    ops: LayerBuilder,
    d_model: u64,
    nhead: u64,
    dim_feedforward: u64,
    dropout: f64,
    activation: Activation,
    layer_norm_eps: f64,
    batch_first: bool,
    norm_first: bool,
    bias: bool,
}

impl TransformerBuilder {
    /// A part with its residual connection and layer norm.
    fn residual_block(
        &mut self,
        input: usize,
        norm: WeightBiasNames,
        part: impl Fn(&mut Self, usize) -> usize,
    ) -> usize {
        if self.norm_first {
            let normed = self.norm(input, norm);
            let made = part(self, normed);
            return self.ops.add(Residual, vec![input, made], Vec::new());
        }
        let made = part(self, input);
        let sum = self.ops.add(Residual, vec![input, made], Vec::new());
        self.norm(sum, norm)
    }

    fn norm(&mut self, input: usize, names: WeightBiasNames) -> usize {
        let (eps, bias) = (self.layer_norm_eps, self.bias);
        let norm =
            LayerNorm { normalized_shape: vec![self.d_model], eps, elementwise_affine: true, bias };
        self.ops.add(norm, vec![input], self.ops.param_names(names))
    }

    fn self_attention(&mut self, input: usize, masks: &Masks) -> usize {
        let [into, out] = SELF_ATTN;
        let packed = self.ops.linear(input, [self.d_model, 3 * self.d_model], into);
        let attended = self.attention(vec![packed], masks, "attention");
        let projected = self.ops.linear(attended, [self.d_model; 2], out);
        self.ops.dropout(projected, self.dropout, "dropout1")
    }

    fn cross_attention(&mut self, input: usize, masks: &Masks) -> usize {
        let [[weight, bias], out] = CROSS_ATTN;
        let mut names = vec![("in_proj_weight", weight)];
        names.extend(self.bias.then_some(("in_proj_bias", bias)));
        let memory = 1;
        let sources = project(&mut self.ops, [self.d_model; 3], vec![input, memory], names);
        let attended = self.attention(sources, masks, "attention to the memory");
        let projected = self.ops.linear(attended, [self.d_model; 2], out);
        self.ops.dropout(projected, self.dropout, "dropout2")
    }

    fn attention(&mut self, sources: Vec<usize>, masks: &Masks, purpose: &'static str) -> usize {
        let heads = i64::try_from(self.nhead).unwrap_or(i64::MAX);
        let attention = Attention::new(AttentionHeads {
            queries: heads,
            keys: heads,
            batch_first: self.batch_first,
            dropout: self.dropout,
            purpose,
            causal: masks.causal,
            scores: Scores::default(),
            window: None,
            mask: masks.mask.is_some(),
            padding_mask: masks.padding.is_some(),
        });
        let inputs = sources.into_iter().chain(masks.mask).chain(masks.padding).collect();
        self.ops.add(attention, inputs, Vec::new())
    }

    fn feed_forward(&mut self, input: usize, purpose: &'static str) -> usize {
        let wide = self.ops.linear(input, [self.d_model, self.dim_feedforward], LINEAR_1);
        let gelu = |approximate| GELU { approximate };
        let active = match self.activation {
            Activation::Relu => self.ops.add(ReLU {}, vec![wide], Vec::new()),
            Activation::Gelu => self.ops.add(gelu(Approximate::None), vec![wide], Vec::new()),
            Activation::GeluTanh => self.ops.add(gelu(Approximate::Tanh), vec![wide], Vec::new()),
        };
        let dropped = self.ops.dropout(active, self.dropout, "dropout");
        let narrow = self.ops.linear(dropped, [self.dim_feedforward, self.d_model], LINEAR_2);
        self.ops.dropout(narrow, self.dropout, purpose)
    }
}
