use super::arguments::bad;
use super::attention::{AttentionDims, Sequence};
use super::transformer::{Activation, Block, ACTIVATION};
use super::{layer, Arity, BadArgument, Rules};
use crate::yaml::{FLAG, NON_NEGATIVE, PROBABILITY, SIZE};
use crate::{Dim, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Attention of every position to every other, then to those of a second input, the memory
    /// (Vaswani et al. 2017, arXiv:1706.03762), then two linear layers on each position; all three
    /// have a residual connection and a layer norm. After the memory come the masks that its
    /// arguments tell of, in their order.
    TransformerDecoderLayer {
        /// Size of the last dimension of both inputs and of the output.
        d_model: u64 = SIZE;
        /// Number of heads, which share `d_model` equally.
        nhead: u64 = SIZE;
        /// Size between the two linear layers.
        dim_feedforward: u64 = SIZE, or 2048;
        /// Probability that an element is set to zero: of the attention weights, of the
        /// activation's result, and of what each part adds to its input.
        dropout: f64 = PROBABILITY, or 0.1;
        /// The function between the two linear layers; `gelu_tanh` is `GELU` with `approximate:
        /// tanh`.
        activation: Activation = ACTIVATION, or Activation::Relu => "relu";
        /// Added to the variance by the layer norms, against division by zero.
        layer_norm_eps: f64 = NON_NEGATIVE, or 1e-5;
        /// Whether inputs are `[batch, seq, d_model]`, and not `[seq, batch, d_model]`.
        batch_first: bool = FLAG, or false;
        /// Whether to normalise before each attention and before the linear layers, and not after
        /// adding.
        norm_first: bool = FLAG, or false;
        /// Whether linear layers and layer norms add a learned bias.
        bias: bool = FLAG, or true;
        /// Whether a further input is a mask between positions, as `attn_mask` of
        /// `MultiheadAttention`.
        tgt_mask: bool = FLAG, or false;
        /// Whether a further input is a mask between positions and the memory's.
        memory_mask: bool = FLAG, or false;
        /// Whether there is a further input, a mask `[batch, seq]` of bool. True excludes a
        /// position from attention.
        tgt_key_padding_mask: bool = FLAG, or false;
        /// Whether there is a further input, a mask `[batch, memory's seq]` of bool. True excludes
        /// a position of the memory from attention.
        memory_key_padding_mask: bool = FLAG, or false;
        /// Whether a position attends to no later one. It needs no mask.
        tgt_is_causal: bool = FLAG, or false;
    }
    unsupported { memory_is_causal: "give a mask, with `memory_mask: true`"; }
}

impl TransformerDecoderLayer {
    fn block(&self) -> Block {
        let &TransformerDecoderLayer {
            d_model: model,
            dim_feedforward: inner,
            activation,
            bias,
            ..
        } = self;
        Block { model, inner, activation, bias }
    }

    /// The names of the inputs that are masks.
    pub fn masks(&self) -> Vec<&'static str> {
        let masks = [
            (self.tgt_mask, "tgt_mask"),
            (self.memory_mask, "memory_mask"),
            (self.tgt_key_padding_mask, "tgt_key_padding_mask"),
            (self.memory_key_padding_mask, "memory_key_padding_mask"),
        ];
        masks.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }

    /// The sizes of both attentions: to itself, and to the memory.
    fn reaches<'a>(&self, inputs: &'a [TensorType]) -> Result<[AttentionDims<'a>; 2], String> {
        let of = |input, called| {
            Sequence::expect(input, called, self.batch_first, "d_model", self.d_model)
        };
        let target = of(&inputs[0], "input")?;
        let memory = of(&inputs[1], "memory")?;
        Ok([
            AttentionDims::between(target, target, self.nhead)?,
            AttentionDims::between(target, memory, self.nhead)?,
        ])
    }
}

impl Rules for TransformerDecoderLayer {
    fn arity(&self) -> Arity {
        Arity::Named(vec![["tgt", "memory"].into_iter().chain(self.masks()).collect()])
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
        let to_itself = block.attention(
            ["self_attn.in_proj_weight", "self_attn.in_proj_bias"],
            ["self_attn.out_proj.weight", "self_attn.out_proj.bias"],
        );
        let to_memory = block.attention(
            ["multihead_attn.in_proj_weight", "multihead_attn.in_proj_bias"],
            ["multihead_attn.out_proj.weight", "multihead_attn.out_proj.bias"],
        );
        let norms = [
            ["norm1.weight", "norm1.bias"],
            ["norm2.weight", "norm2.bias"],
            ["norm3.weight", "norm3.bias"],
        ];
        [to_itself, to_memory, block.feed_forward(), norms.map(|names| block.norm(names)).concat()]
            .concat()
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [to_itself, to_memory] = self.reaches(inputs)?;
        for (name, mask) in self.masks().into_iter().zip(&inputs[2..]) {
            match name {
                "tgt_mask" => to_itself.expect_mask(mask, name)?,
                "memory_mask" => to_memory.expect_mask(mask, name)?,
                "tgt_key_padding_mask" => to_itself.expect_padding_mask(mask, name)?,
                _ => to_memory.expect_padding_mask(mask, name)?,
            }
        }
        Ok(vec![inputs[0].clone()])
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        let block = self.block();
        let [to_itself, to_memory] = self.reaches(inputs).map_err(|_| OutOfRange)?;
        let target = to_itself.queries;
        let others = Dim::product([target.samples, target.positions, &block.flops_each(3)?])?;
        block.attention_flops(&to_itself)?.plus(&block.attention_flops(&to_memory)?)?.plus(&others)
    }
}
