use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::sizes::sizes;
use layerspec::layers::RMSNorm;
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for RMSNorm {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let weight = offset_weight(ctx, self.offset)?;
        let shape = sizes(&self.normalized_shape)?;
        Ok(vec![single_input_ref(inputs)?.f_rms_norm(shape, weight, self.eps)?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The number that each element is multiplied by: the weight of the op, if it has one, and a number
/// that is added to it.
pub(crate) fn offset_weight(
    ctx: &OpContext<'_>,
    offset: f64,
) -> Result<Option<Tensor>, TensorError> {
    let Some(weight) = ctx.optional_param("weight") else { return Ok(None) };
    Ok(Some(match offset {
        0.0 => weight.shallow_clone(),
        offset => weight.f_add_scalar(offset)?,
    }))
}
