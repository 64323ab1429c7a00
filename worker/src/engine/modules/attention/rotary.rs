use crate::engine::layers::op_context::OpContext;
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
        let angles = self.angles(input, ctx.past()..ctx.past().saturating_add(positions), head)?;
        let angles = if self.num_heads.is_some() { angles.f_unsqueeze(1)? } else { angles };
        let (cos, sin) = (
            angles.f_cos()?.f_to_kind(input.f_kind()?)?,
            angles.f_sin()?.f_to_kind(input.f_kind()?)?,
        );
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
        like: &Tensor,
        positions: Range<i64>,
        head: i64,
    ) -> Result<Tensor, TensorError>;
    fn rotate_half(&self, heads: &Tensor) -> Result<Tensor, TensorError>;
}

impl RotaryPairs for RotaryEmbedding {
    /// `[positions, head]`, the same for both elements of a pair.
    fn angles(
        &self,
        like: &Tensor,
        positions: Range<i64>,
        head: i64,
    ) -> Result<Tensor, TensorError> {
        let options = (Kind::Float, like.device());
        let exponents = Tensor::f_arange_start_step(0, head, 2, options)?.f_div_scalar(head)?;
        let inverse_frequencies = Tensor::f_pow_scalar(self.base, &exponents)?.f_reciprocal()?;
        let angles = Tensor::f_arange_start(positions.start, positions.end, options)?
            .f_outer(&inverse_frequencies)?;
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
