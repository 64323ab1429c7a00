use super::{Call, Module};
use layerspec::layers::{LogSoftmax, Softmax};
use tch::Tensor;
use tensor::TensorError;

impl Module for Softmax {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_softmax(self.dim, None)?])
    }
}

impl Module for LogSoftmax {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_log_softmax(self.dim, None)?])
    }
}
