use super::by_autograd::Differentiable;
use super::join::two;
use super::Call;
use layerspec::layers::Bilinear;
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for Bilinear {
    fn compute(&self, call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [first, second] = two(inputs)?;
        Ok(vec![Tensor::f_bilinear(first, second, call.param("weight")?, call.optional("bias"))?])
    }
}
