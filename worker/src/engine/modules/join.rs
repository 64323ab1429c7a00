use super::{Call, Module};
use layerspec::layers::{Add, Concat, Mul};
use tch::Tensor;
use tensor::TensorError;

impl Module for Add {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        let (first, others) = call.inputs()?;
        Ok(vec![others.iter().try_fold(first.shallow_clone(), |sum, other| sum.f_add(other))?])
    }
}

impl Module for Mul {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        let (first, others) = call.inputs()?;
        Ok(vec![others.iter().try_fold(first.shallow_clone(), |product, other| product.f_mul(other))?])
    }
}

impl Module for Concat {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![Tensor::f_cat(call.inputs, self.dim)?])
    }
}
