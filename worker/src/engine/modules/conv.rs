use super::{size, sizes, Call, Module};
use layerspec::layers::{Conv2d, Padding};
use tch::Tensor;
use tensor::TensorError;

impl Module for Conv2d {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        let (input, weight, bias) = (call.input()?, call.param("weight")?, call.optional("bias"));
        let (stride, dilation, groups) = (sizes(&self.stride)?, sizes(&self.dilation)?, size(self.groups)?);
        let output = match self.padding {
            Padding::Explicit(padding) => input.f_conv2d(weight, bias, stride, sizes(&padding)?, dilation, groups),
            Padding::Same => input.f_conv2d_padding(weight, bias, stride, "same", dilation, groups),
        };
        Ok(vec![output?])
    }
}
