use super::{sizes, Call, Module};
use layerspec::layers::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
use tch::Tensor;
use tensor::TensorError;

impl Module for MaxPool2d {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        let (kernel, stride) = (sizes(&self.kernel_size)?, sizes(&self.stride)?);
        let (padding, dilation) = (sizes(&self.padding)?, sizes(&self.dilation)?);
        Ok(vec![call.input()?.f_max_pool2d(kernel, stride, padding, dilation, self.ceil_mode)?])
    }
}

impl Module for AvgPool2d {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        let (kernel, stride, padding) = (sizes(&self.kernel_size)?, sizes(&self.stride)?, sizes(&self.padding)?);
        let (ceil_mode, count_pad, divisor) = (self.ceil_mode, self.count_include_pad, self.divisor_override);
        Ok(vec![call.input()?.f_avg_pool2d(kernel, stride, padding, ceil_mode, count_pad, divisor)?])
    }
}

impl Module for AdaptiveAvgPool2d {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![call.input()?.f_adaptive_avg_pool2d(sizes(&self.output_size)?)?])
    }
}
