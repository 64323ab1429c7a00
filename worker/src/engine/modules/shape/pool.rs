use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::sizes::sizes;
use layerspec::layers::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool1d, AvgPool2d, MaxPool1d,
    MaxPool2d,
};
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for MaxPool1d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (kernel, stride) = (sizes(&self.kernel_size)?, sizes(&self.stride)?);
        let (padding, dilation) = (sizes(&self.padding)?, sizes(&self.dilation)?);
        Ok(vec![single_input_ref(inputs)?.f_max_pool1d(
            kernel,
            stride,
            padding,
            dilation,
            self.ceil_mode,
        )?])
    }
}

impl Differentiable for MaxPool2d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (kernel, stride) = (sizes(&self.kernel_size)?, sizes(&self.stride)?);
        let (padding, dilation) = (sizes(&self.padding)?, sizes(&self.dilation)?);
        Ok(vec![single_input_ref(inputs)?.f_max_pool2d(
            kernel,
            stride,
            padding,
            dilation,
            self.ceil_mode,
        )?])
    }
}

impl Differentiable for AvgPool1d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (kernel, stride, padding) =
            (sizes(&self.kernel_size)?, sizes(&self.stride)?, sizes(&self.padding)?);
        Ok(vec![single_input_ref(inputs)?.f_avg_pool1d(
            kernel,
            stride,
            padding,
            self.ceil_mode,
            self.count_include_pad,
        )?])
    }
}

impl Differentiable for AvgPool2d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (kernel, stride, padding) =
            (sizes(&self.kernel_size)?, sizes(&self.stride)?, sizes(&self.padding)?);
        let (ceil_mode, count_pad, divisor) =
            (self.ceil_mode, self.count_include_pad, self.divisor_override);
        Ok(vec![single_input_ref(inputs)?
            .f_avg_pool2d(kernel, stride, padding, ceil_mode, count_pad, divisor)?])
    }
}

impl Differentiable for AdaptiveAvgPool1d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![single_input_ref(inputs)?.f_adaptive_avg_pool1d(sizes(&self.output_size)?)?])
    }
}

impl Differentiable for AdaptiveMaxPool2d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (largest, _places) =
            single_input_ref(inputs)?.f_adaptive_max_pool2d(sizes(&self.output_size)?)?;
        Ok(vec![largest])
    }
}

impl Differentiable for AdaptiveAvgPool2d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![single_input_ref(inputs)?.f_adaptive_avg_pool2d(sizes(&self.output_size)?)?])
    }
}
