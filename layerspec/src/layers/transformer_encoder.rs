use super::arguments::bad;
use super::attention::{AttentionDims, Sequence};
use super::transformer::{Activation, Block, ACTIVATION};
use super::{layer, Arity, BadArgument, Rules};
use crate::yaml::{FLAG, NON_NEGATIVE, PROBABILITY, SIZE};
use crate::{Dim, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Attention of every position to every other (Vaswani et al. 2017, arXiv:1706.03762), then two
    /// linear layers on each position; both have a residual connection and a layer norm. After its
    /// input come the masks that its arguments tell of, in their order.
    TransformerEncoderLayer {
        /// Size of the last dimension of input and output.
        d_model: u64 = SIZE;
        /// Number of heads, which share `d_model` equally.
        nhead: u64 = SIZE;
        /// Size between the two linear layers.
        dim_feedforward: u64 = SIZE, or 2048;
        /// Probability that an element is set to zero: of the attention weights, of the
        /// activation's result, and of what either part adds to its input.
        dropout: f64 = PROBABILITY, or 0.1;
        /// The function between the two linear layers; `gelu_tanh` is `GELU` with `approximate:
        /// tanh`.
        activation: Activation = ACTIVATION, or Activation::Relu => "relu";
        /// Added to the variance by the layer norms, against division by zero.
        layer_norm_eps: f64 = NON_NEGATIVE, or 1e-5;
        /// Whether the input is `[batch, seq, d_model]`, and not `[seq, batch, d_model]`.
        batch_first: bool = FLAG, or false;
        /// Whether to normalise before attention and before the linear layers, and not after
        /// adding.
        norm_first: bool = FLAG, or false;
        /// Whether linear layers and layer norms add a learned bias.
        bias: bool = FLAG, or true;
        /// Whether a further input is a mask, as `attn_mask` of `MultiheadAttention`.
        src_mask: bool = FLAG, or false;
        /// Whether there is a further input, a mask `[batch, seq]` of bool. True excludes a
        /// position from attention.
        src_key_padding_mask: bool = FLAG, or false;
        /// Whether a position attends to no later one. It needs no mask.
        is_causal: bool = FLAG, or false;
    }
}

impl TransformerEncoderLayer {
    fn block(&self) -> Block {
        let &TransformerEncoderLayer {
            d_model: model,
            dim_feedforward: inner,
            activation,
            bias,
            ..
        } = self;
        Block { model, inner, activation, bias }
    }
}

impl Rules for TransformerEncoderLayer {
    fn arity(&self) -> Arity {
        let masks =
            [(self.src_mask, "src_mask"), (self.src_key_padding_mask, "src_key_padding_mask")];
        let masks = masks.into_iter().filter_map(|(given, name)| given.then_some(name));
        match std::iter::once("src").chain(masks).collect::<Vec<_>>() {
            names if names.len() == 1 => Arity::One,
            names => Arity::Named(vec![names]),
        }
    }

    fn check(&self) -> Result<(), BadArgument> {
        if self.d_model.checked_rem(self.nhead) == Some(0) {
            return Ok(());
        }
        Err(bad("nhead", format!("a divisor of d_model ({})", self.d_model)))
    }

    fn mixes_outermost(&self) -> bool {
        !self.batch_first
    }

    fn params(&self) -> Vec<ParamSpec> {
        let block = self.block();
        let into = ["self_attn.in_proj_weight", "self_attn.in_proj_bias"];
        let out = ["self_attn.out_proj.weight", "self_attn.out_proj.bias"];
        let norms = [
            block.norm(["norm1.weight", "norm1.bias"]),
            block.norm(["norm2.weight", "norm2.bias"]),
        ];
        [block.attention(into, out), block.feed_forward(), norms.concat()].concat()
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input =
            Sequence::expect(&inputs[0], "input", self.batch_first, "d_model", self.d_model)?;
        let dims = AttentionDims::between(input, input, self.nhead)?;
        if let Some(mask) = inputs.get(1).filter(|_| self.src_mask) {
            dims.expect_mask(mask, "src_mask")?;
        }
        if let Some(mask) = inputs.last().filter(|_| self.src_key_padding_mask) {
            dims.expect_padding_mask(mask, "src_key_padding_mask")?;
        }
        Ok(vec![inputs[0].clone()])
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        let input = Sequence::of(&inputs[0], self.batch_first, self.d_model).ok_or(OutOfRange)?;
        let dims = AttentionDims { queries: input, keys: input.positions, heads: self.nhead };
        let others = Dim::product([input.samples, input.positions, &self.block().flops_each(2)?])?;
        self.block().attention_flops(&dims)?.plus(&others)
    }
}
