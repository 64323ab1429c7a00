use super::arguments::{bad, expect_floating, OPTIONAL_SIZE};
use super::rope_scaling::{RopeScaling, Rotation};
use super::rope_scaling_reader::ROPE_SCALING;
use super::{layer, BadArgument, Rules};
use crate::yaml::{FLAG, NUMBER, SIZE};
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// Turns pairs of elements by angles that grow with the position (Su et al. 2021,
    /// arXiv:2104.09864): what queries and keys pass before attention in Llama and its like. The
    /// input is `[batch, heads, seq, head_dim]`; with `num_heads` it is `[batch, seq,
    /// num_heads*head_dim]`. Not PyTorch's.
    RotaryEmbedding {
        /// Size of a head, an even number.
        head_dim: u64 = SIZE;
        /// Pair `i` turns by `base^(-2i / head_dim)` from one position to the next.
        base: f64 = NUMBER, or 10000.0;
        /// Whether a pair is two elements side by side, and not one of a head's first half and one
        /// of its second, as Hugging Face has it.
        interleaved: bool = FLAG, or false;
        /// Number of heads that lie side by side in the last dimension; `null` if they have a
        /// dimension of their own.
        num_heads: Option<u64> = OPTIONAL_SIZE, or None => "null";
        /// Other angles, for longer sequences, as Hugging Face's; see [Scaled
        /// angles](#scaled-angles).
        rope_scaling: Option<RopeScaling> = ROPE_SCALING, or None => "null";
        /// Number of positions that `rope_scaling` starts from where it names none itself.
        max_position_embeddings: Option<u64> = OPTIONAL_SIZE, or None => "null";
    }
}

/// For every element two products and a sum, and the other element's sign.
pub(super) const FLOPS_EACH: u64 = 4;

impl Rules for RotaryEmbedding {
    fn check(&self) -> Result<(), BadArgument> {
        if !self.head_dim.is_multiple_of(2) {
            return Err(bad("head_dim", "an even number"));
        }
        if self.base <= 0.0 {
            return Err(bad("base", "a number above 0"));
        }
        let rotation = Rotation {
            head_dim: self.head_dim,
            base: self.base,
            base_name: "base",
            max_position_embeddings: self.max_position_embeddings,
        };
        self.rope_scaling.as_ref().map_or(Ok(()), |scaling| scaling.check(&rotation))
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let input = &inputs[0];
        expect_floating(input)?;
        match (self.num_heads, input.dims()) {
            (None, [_, _, _, last]) if *last == Dim::Fixed(self.head_dim) => Ok(inputs.to_vec()),
            (None, _) => Err(format!(
                "expected an input [batch, heads, seq, {}] (head_dim), found {input}",
                self.head_dim
            )),
            (Some(heads), dims) => {
                let width = heads.checked_mul(self.head_dim).ok_or(OutOfRange)?;
                match dims {
                    [_, _, last] if *last == Dim::Fixed(width) => Ok(inputs.to_vec()),
                    _ => Err(format!(
                        "expected an input [batch, seq, {width}] (num_heads * head_dim), found \
                         {input}"
                    )),
                }
            }
        }
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())?.times_number(FLOPS_EACH)
    }
}
