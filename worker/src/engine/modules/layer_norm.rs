use super::{sizes, Call, Module};
use layerspec::layers::LayerNorm;
use tch::Tensor;
use tensor::TensorError;

impl Module for LayerNorm {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        let shape = sizes(&self.normalized_shape)?;
        let (weight, bias) = (call.optional("weight"), call.optional("bias"));
        Ok(vec![call.input()?.f_layer_norm(shape, weight, bias, self.eps, true)?])
    }
}
