use super::by_autograd::Differentiable;
use super::{missing, Call};
use layerspec::layers::Bilinear;
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for Bilinear {
    fn compute(&self, call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [first, second] = inputs else {
            return Err(missing(format!("expected two inputs, got {}", inputs.len())));
        };
        Ok(vec![Tensor::f_bilinear(first, second, call.param("weight")?, call.optional("bias"))?])
    }
}
