use super::by_autograd::Differentiable;
use super::{missing, sizes, Call};
use layerspec::layers::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for MaxPool2d {
    fn compute(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (kernel, stride) = (sizes(&self.kernel_size)?, sizes(&self.stride)?);
        let (padding, dilation) = (sizes(&self.padding)?, sizes(&self.dilation)?);
        Ok(vec![input(inputs)?.f_max_pool2d(kernel, stride, padding, dilation, self.ceil_mode)?])
    }
}

impl Differentiable for AvgPool2d {
    fn compute(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (kernel, stride, padding) = (sizes(&self.kernel_size)?, sizes(&self.stride)?, sizes(&self.padding)?);
        let (ceil_mode, count_pad, divisor) = (self.ceil_mode, self.count_include_pad, self.divisor_override);
        Ok(vec![input(inputs)?.f_avg_pool2d(kernel, stride, padding, ceil_mode, count_pad, divisor)?])
    }
}

impl Differentiable for AdaptiveAvgPool2d {
    fn compute(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![input(inputs)?.f_adaptive_avg_pool2d(sizes(&self.output_size)?)?])
    }
}

fn input(inputs: &[Tensor]) -> Result<&Tensor, TensorError> {
    inputs.first().ok_or_else(|| missing("expected one input, got none"))
}
