use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::two_inputs;
use layerspec::layers::Bilinear;
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for Bilinear {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [first, second] = two_inputs(inputs)?;
        Ok(vec![Tensor::f_bilinear(
            first,
            second,
            ctx.param("weight")?,
            ctx.optional_param("bias"),
        )?])
    }
}
