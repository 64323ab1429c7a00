use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::attention::rope_frequencies::{rope_frequencies, RopeFrequencies};
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::sizes::size;
use layerspec::layers::RotaryEmbedding;
use std::ops::Range;
use tch::{Kind, Tensor};
use tensor::TensorError;

impl Differentiable for RotaryEmbedding {
    /// Always computes in single precision, because angles grow with positions. The result has the
    /// input's type.
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        let head = size(self.head_dim)?;
        let heads = match self.num_heads {
            Some(heads) => input.f_unflatten(-1, [size(heads)?, head])?,
            None => input.shallow_clone(),
        };
        // Positions come before the heads, or after them.
        let positions =
            heads.size().get(if self.num_heads.is_some() { 1 } else { 2 }).copied().unwrap_or(0);
        let positions = ctx.past()..ctx.past().saturating_add(positions);
        let frequencies = rope_frequencies(self, positions.end, input.device())?;
        let angles = self.angles(&frequencies, positions)?;
        let angles = if self.num_heads.is_some() { angles.f_unsqueeze(1)? } else { angles };
        let kind = input.f_kind()?;
        let [cos, sin] =
            [angles.f_cos()?, angles.f_sin()?].map(|turned| match frequencies.attention_factor {
                Some(factor) => turned.f_mul_scalar(factor)?.f_to_kind(kind),
                None => turned.f_to_kind(kind),
            });
        let (cos, sin) = (cos?, sin?);
        let rotated = heads.f_mul(&cos)?.f_add(&self.rotate_half(&heads)?.f_mul(&sin)?)?;
        Ok(vec![if self.num_heads.is_some() { rotated.f_flatten(-2, -1)? } else { rotated }])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The pairing of the elements of a head.
trait RotaryPairs {
    fn angles(
        &self,
        frequencies: &RopeFrequencies,
        positions: Range<i64>,
    ) -> Result<Tensor, TensorError>;
    fn rotate_half(&self, heads: &Tensor) -> Result<Tensor, TensorError>;
}

impl RotaryPairs for RotaryEmbedding {
    /// `[positions, head]`, the same for both elements of a pair.
    fn angles(
        &self,
        frequencies: &RopeFrequencies,
        positions: Range<i64>,
    ) -> Result<Tensor, TensorError> {
        let options = (Kind::Float, frequencies.inverse.device());
        let angles = Tensor::f_arange_start(positions.start, positions.end, options)?
            .f_outer(&frequencies.inverse)?;
        if self.interleaved {
            return Ok(Tensor::f_stack(&[&angles, &angles], -1)?.f_flatten(1, 2)?);
        }
        Ok(Tensor::f_cat(&[&angles, &angles], -1)?)
    }

    /// Each pair `(a, b)` as `(-b, a)`.
    fn rotate_half(&self, heads: &Tensor) -> Result<Tensor, TensorError> {
        if self.interleaved {
            let pairs = heads.f_unflatten(-1, [-1, 2])?;
            let (first, second) = (pairs.f_select(-1, 0)?, pairs.f_select(-1, 1)?);
            return Ok(Tensor::f_stack(&[second.f_neg()?, first], -1)?.f_flatten(-2, -1)?);
        }
        let half = size(self.head_dim / 2)?;
        let (first, second) = (heads.f_narrow(-1, 0, half)?, heads.f_narrow(-1, half, half)?);
        Ok(Tensor::f_cat(&[second.f_neg()?, first], -1)?)
    }
}
