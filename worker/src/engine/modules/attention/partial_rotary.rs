use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::sizes::size;
use layerspec::layers::RotaryEmbedding;
use tch::Tensor;
use tensor::TensorError;

/// The rotary embedding of the first elements of each head of `[batch, positions, width of all
/// heads]`. The other elements stay as they are.
#[derive(Debug)]
pub(crate) struct PartialRotary {
    /// Of heads that have those first elements alone, side by side.
    pub(crate) rotary: RotaryEmbedding,
    /// The size of a whole head.
    pub(crate) head_dim: u64,
}

impl Differentiable for PartialRotary {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (head, turning) = (size(self.head_dim)?, size(self.rotary.head_dim)?);
        let heads = single_input_ref(inputs)?.f_unflatten(-1, [-1, head])?;
        let first = heads.f_narrow(-1, 0, turning)?.f_flatten(-2, -1)?;
        let turned = self.rotary.compute(ctx, &[first])?;
        let turned = single_input_ref(&turned)?.f_unflatten(-1, [-1, turning])?;
        let rest = heads.f_narrow(-1, turning, head.saturating_sub(turning))?;
        Ok(vec![Tensor::f_cat(&[turned, rest], -1)?.f_flatten(-2, -1)?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
