use super::{Call, Module};
use layerspec::layers::Linear;
use tch::Tensor;
use tensor::TensorError;

impl Module for Linear {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_linear(call.param("weight")?, call.optional("bias"))?])
    }
}
