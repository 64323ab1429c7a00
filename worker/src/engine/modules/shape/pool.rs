use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::modules::shape::by_products;
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
        let (input, to) = (single_input_ref(inputs)?, sizes(&self.output_size)?);
        let [length] = to[..] else { return Err(layer_error("expected one output size")) };
        if !by_products::are_needed(input)? {
            return Ok(vec![input.f_adaptive_avg_pool1d(to)?]);
        }
        Ok(vec![mean_of_regions(&input.f_unsqueeze(-2)?, [1, length])?.f_squeeze_dim(-2)?])
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
        let (input, to) = (single_input_ref(inputs)?, sizes(&self.output_size)?);
        let [height, width] = to[..] else { return Err(layer_error("expected two output sizes")) };
        if !by_products::are_needed(input)? {
            return Ok(vec![input.f_adaptive_avg_pool2d(to)?]);
        }
        Ok(vec![mean_of_regions(input, [height, width])?])
    }
}

/// An adaptive average pool whose backward pass is deterministic on GPUs.
fn mean_of_regions(image: &Tensor, to: [i64; 2]) -> Result<Tensor, TensorError> {
    let from = by_products::height_and_width(image)?;
    let kernel = [0, 1].map(|dim| from[dim] / to[dim].max(1));
    if (0..2).all(|dim| kernel[dim] * to[dim] == from[dim]) {
        return Ok(image.f_avg_pool2d(kernel, kernel, [0, 0], false, true, None)?);
    }
    by_products::resize(image, to, |image, to| Ok(image.f_adaptive_avg_pool2d(to)?))
}
