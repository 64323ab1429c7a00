use super::{Call, Module};
use layerspec::layers::{Flatten, Reshape, Transpose};
use tch::Tensor;
use tensor::TensorError;

impl Module for Flatten {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_flatten(self.start_dim, self.end_dim)?])
    }
}

impl Module for Reshape {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_reshape(&self.shape[..])?])
    }
}

impl Module for Transpose {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_transpose(self.dim0, self.dim1)?])
    }
}
