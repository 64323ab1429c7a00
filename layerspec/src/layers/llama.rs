//! The attention of a decoder layer of Llama (Touvron et al. 2023, arXiv:2302.13971) and its like,
//! with Hugging Face's names.

use super::arguments::{
    bad, OPTIONAL_NON_NEGATIVE, OPTIONAL_NUMBER, OPTIONAL_POSITIVE, OPTIONAL_SIZE,
};
use super::attention::{AttentionDims, Sequence};
use super::rms_norm::weight_init;
use super::rope_scaling::{RopeScaling, Rotation};
use super::rope_scaling_reader::ROPE_SCALING;
use super::rotary::FLOPS_EACH;
use super::{layer, Arity, BadArgument, Rules};
use crate::yaml::{FLAG, NUMBER, PROBABILITY, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Attention of every position of `[batch, seq, hidden_size]` to itself and earlier ones, whose
    /// queries and keys know their positions by `RotaryEmbedding`; after its input comes the mask
    /// that its arguments tell of. As Hugging Face's; `RMSNorm` stands before it and `Add` after
    /// it. Not PyTorch's.
    LlamaAttention {
        /// Size of the last dimension of input and output.
        hidden_size: u64 = SIZE;
        /// Number of heads.
        num_attention_heads: u64 = SIZE;
        /// Number of heads of keys and values (grouped-query attention); `null` is
        /// `num_attention_heads`.
        num_key_value_heads: Option<u64> = OPTIONAL_SIZE, or None => "null";
        /// Size of a head, an even number unless `rope_theta` is null; `null` is `hidden_size` by
        /// `num_attention_heads`.
        head_dim: Option<u64> = OPTIONAL_SIZE, or None => "null";
        /// The `base` of the rotary embedding; `null` is none, so that queries and keys do not know
        /// their positions.
        rope_theta: Option<f64> = OPTIONAL_NUMBER, or Some(10000.0) => "10000.0";
        /// Other angles, for longer sequences, as Hugging Face's; see [Scaled
        /// angles](#scaled-angles).
        rope_scaling: Option<RopeScaling> = ROPE_SCALING, or None => "null";
        /// Number of positions that `rope_scaling` starts from where it names none itself.
        max_position_embeddings: Option<u64> = OPTIONAL_SIZE, or None => "null";
        /// Share of a head that turns, as Phi-3's: its first elements, rounded down to a whole
        /// number, which is even.
        partial_rotary_factor: f64 = PROBABILITY, or 1.0;
        /// Whether one projection, `qkv_proj`, makes queries, keys and values, as Phi-3's.
        fused: bool = FLAG, or false;
        /// Whether the rows of `qkv_proj` go by heads, as GPT-NeoX's: those of the query, the key
        /// and the value of the first head, then those of the next.
        fused_by_head: bool = FLAG, or false;
        /// Whether projections add a learned bias.
        attention_bias: bool = FLAG, or false;
        /// Whether the projections to queries, keys and values alone add one, as Qwen2's.
        qkv_bias: bool = FLAG, or false;
        /// The `eps` of an `RMSNorm` of each head of queries and of keys, before they turn, as
        /// Qwen3's; `null` is no norm.
        qk_norm_eps: Option<f64> = OPTIONAL_NON_NEGATIVE, or None => "null";
        /// The `offset` of these norms, as Gemma 3's.
        qk_norm_offset: f64 = NUMBER, or 0.0;
        /// Scores are divided by the root of this number, as Gemma's; `null` is the size of a head.
        query_pre_attn_scalar: Option<f64> = OPTIONAL_POSITIVE, or None => "null";
        /// Scores `s` become `cap * tanh(s / cap)` before they are masked, as Gemma 2's; `null` is
        /// no cap.
        attn_logit_softcapping: Option<f64> = OPTIONAL_POSITIVE, or None => "null";
        /// Probability that an attention weight is set to zero.
        attention_dropout: f64 = PROBABILITY, or 0.0;
        /// Whether a position attends to no later one.
        is_causal: bool = FLAG, or true;
        /// Number of positions that a position attends to: itself and those just before it. `null`
        /// is all before it.
        sliding_window: Option<u64> = OPTIONAL_SIZE, or None => "null";
        /// Whether there is a further input, a mask `[batch, seq]` of bool. True excludes a
        /// position from attention.
        key_padding_mask: bool = FLAG, or false;
    }
}

/// The norm of an element of queries or keys, as of `RMSNorm`.
const NORM_FLOPS_EACH: u64 = 5;
/// The cap of a score: a division, the hyperbolic tangent, and a product.
const CAP_FLOPS_EACH: u64 = 3;

/// Weight and perhaps bias of a linear layer.
pub(super) fn linear(
    [weight, bias]: [&'static str; 2],
    [rows, columns]: [u64; 2],
    has_bias: bool,
) -> Vec<ParamSpec> {
    let init = Init::fan_in(columns as f64);
    let mut params = vec![ParamSpec::parameter(weight, vec![rows, columns], init)];
    params.extend(has_bias.then(|| ParamSpec::parameter(bias, vec![rows], init)));
    params
}

impl LlamaAttention {
    /// Heads of queries, and of keys and values.
    pub fn heads(&self) -> [u64; 2] {
        [self.num_attention_heads, self.num_key_value_heads.unwrap_or(self.num_attention_heads)]
    }

    /// Size of a head.
    pub fn head_size(&self) -> u64 {
        self.head_dim.unwrap_or(self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0))
    }

    /// Widths of all queries and of all keys. Too large a size stays too large, and the number of
    /// elements says so.
    pub fn widths(&self) -> [u64; 2] {
        self.heads().map(|heads| heads.saturating_mul(self.head_size()))
    }

    /// The elements of a head that turn.
    pub fn rotary_size(&self) -> u64 {
        // As Python's `int`.
        (self.head_size() as f64 * self.partial_rotary_factor) as u64
    }

    /// The number by which scores are multiplied, if it is not that of the size of a head.
    pub fn score_scale(&self) -> Option<f64> {
        self.query_pre_attn_scalar.map(|scalar| scalar.powf(-0.5))
    }

    /// Whether the projections to queries, keys and values add a bias.
    pub fn has_qkv_bias(&self) -> bool {
        self.attention_bias || self.qkv_bias
    }

    fn check_rotation(&self) -> Result<(), BadArgument> {
        let (head, turning) = (self.head_size(), self.rotary_size());
        let is_whole = self.partial_rotary_factor == 1.0;
        match self.rope_theta {
            Some(_) if is_whole && !head.is_multiple_of(2) => {
                let expected = "an even number, as elements turn in pairs, and not";
                return Err(bad("head_dim", format!("{expected} {head}")));
            }
            Some(_) if !is_whole && (turning == 0 || !turning.is_multiple_of(2)) => {
                let expected = format!(
                    "a share of a head ({head}) with an even number of elements, and not {turning}"
                );
                return Err(bad("partial_rotary_factor", expected));
            }
            None if !is_whole => {
                let expected = "1.0, as `rope_theta: null` turns nothing";
                return Err(bad("partial_rotary_factor", expected));
            }
            _ => {}
        }
        let (base, scaling) = match (self.rope_theta, &self.rope_scaling) {
            (Some(base), _) if base <= 0.0 => {
                return Err(bad("rope_theta", "a number above 0, or null"))
            }
            (None, Some(_)) => {
                return Err(bad("rope_scaling", "null, as `rope_theta: null` turns nothing"))
            }
            (Some(base), Some(scaling)) => (base, scaling),
            (_, None) => return Ok(()),
        };
        scaling.check(&Rotation {
            head_dim: self.rotary_size(),
            base,
            base_name: "rope_theta",
            max_position_embeddings: self.max_position_embeddings,
        })
    }

    fn dims<'a>(&self, inputs: &'a [TensorType]) -> Result<AttentionDims<'a>, String> {
        let input = Sequence::expect(&inputs[0], "input", true, "hidden_size", self.hidden_size)?;
        AttentionDims::between(input, input, self.num_attention_heads)
    }
}

impl Rules for LlamaAttention {
    fn arity(&self) -> Arity {
        match self.key_padding_mask {
            true => Arity::Named(vec![vec!["hidden_states", "key_padding_mask"]]),
            false => Arity::One,
        }
    }

    fn check(&self) -> Result<(), BadArgument> {
        let [queries, keys] = self.heads();
        if self.head_dim.is_none() && self.hidden_size.checked_rem(queries) != Some(0) {
            return Err(bad(
                "num_attention_heads",
                format!("a divisor of hidden_size ({})", self.hidden_size),
            ));
        }
        if queries.checked_rem(keys) != Some(0) {
            return Err(bad(
                "num_key_value_heads",
                format!("a divisor of num_attention_heads ({queries})"),
            ));
        }
        if self.fused_by_head && !self.fused {
            return Err(bad("fused_by_head", "false, as `fused: false` has no `qkv_proj`"));
        }
        if self.fused_by_head && queries != keys {
            return Err(bad("fused_by_head", "false, as heads share keys and values"));
        }
        if self.attention_bias && self.qkv_bias {
            return Err(bad("qkv_bias", "false, as `attention_bias: true` is these biases, too"));
        }
        if self.sliding_window.is_some() && !self.is_causal {
            return Err(bad("sliding_window", "null, as `is_causal: false` has no window"));
        }
        if self.qk_norm_offset != 0.0 && self.qk_norm_eps.is_none() {
            return Err(bad("qk_norm_offset", "0.0, as `qk_norm_eps: null` is no norm"));
        }
        self.check_rotation()
    }

    fn params(&self) -> Vec<ParamSpec> {
        let (model, [queries, keys], bias) = (self.hidden_size, self.widths(), self.has_qkv_bias());
        let init = weight_init(self.qk_norm_offset);
        let norm = |name| ParamSpec::parameter(name, vec![self.head_size()], init);
        let norms = self.qk_norm_eps.map(|_| vec![norm("q_norm.weight"), norm("k_norm.weight")]);
        let projections = match self.fused {
            true => {
                // Too large a width stays too large.
                let all = queries.saturating_add(keys.saturating_mul(2));
                linear(["qkv_proj.weight", "qkv_proj.bias"], [all, model], bias)
            }
            false => [
                linear(["q_proj.weight", "q_proj.bias"], [queries, model], bias),
                linear(["k_proj.weight", "k_proj.bias"], [keys, model], bias),
                linear(["v_proj.weight", "v_proj.bias"], [keys, model], bias),
            ]
            .concat(),
        };
        [
            projections,
            linear(["o_proj.weight", "o_proj.bias"], [model, queries], self.attention_bias),
            norms.unwrap_or_default(),
        ]
        .concat()
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let dims = self.dims(inputs)?;
        if let Some(mask) = inputs.get(1) {
            dims.expect_padding_mask(mask, "key_padding_mask")?;
        }
        Ok(vec![inputs[0].clone()])
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        let dims = self.dims(inputs).map_err(|_| OutOfRange)?;
        let [queries, keys] = self.widths();
        let both = Dim::Fixed(queries).plus(&Dim::Fixed(keys))?;
        // For each position: the four projections, and the norm and turning of queries and keys.
        let turning = self.rope_theta.map_or(0, |_| FLOPS_EACH);
        let norm = self.qk_norm_eps.map_or(0, |_| NORM_FLOPS_EACH);
        let projections = both.times_number(self.hidden_size)?.times_number(4)?;
        let each = projections.plus(&both.times_number(turning + norm)?)?;
        // A window blocks scores after they are computed, as causality does.
        let Sequence { samples, positions } = dims.queries;
        let all = Dim::product([samples, positions, &each])?.plus(&dims.flops(queries)?)?;
        if self.attn_logit_softcapping.is_none() {
            return Ok(all);
        }
        let scores = Dim::product([samples, positions, dims.keys])?;
        all.plus(&scores.times_number(self.num_attention_heads)?.times_number(CAP_FLOPS_EACH)?)
    }
}
