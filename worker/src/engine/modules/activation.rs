use super::{Call, Module};
use layerspec::layers::{Approximate, Identity, ReLU, SiLU, Sigmoid, Tanh, GELU};
use tch::Tensor;
use tensor::TensorError;

impl Module for ReLU {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_relu()?])
    }
}

impl Module for GELU {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        let approximate = match self.approximate {
            Approximate::None => "none",
            Approximate::Tanh => "tanh",
        };
        Ok(vec![call.input()?.f_gelu(approximate)?])
    }
}

impl Module for SiLU {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_silu()?])
    }
}

impl Module for Sigmoid {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_sigmoid()?])
    }
}

impl Module for Tanh {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_tanh()?])
    }
}

impl Module for Identity {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.shallow_clone()])
    }
}
