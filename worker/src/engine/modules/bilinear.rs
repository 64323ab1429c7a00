use super::by_autograd::Differentiable;
use super::join::two_inputs;
use super::OpContext;
use layerspec::layers::Bilinear;
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for Bilinear {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [first, second] = two_inputs(inputs)?;
        Ok(vec![Tensor::f_bilinear(first, second, ctx.param("weight")?, ctx.optional_param("bias"))?])
    }
}
