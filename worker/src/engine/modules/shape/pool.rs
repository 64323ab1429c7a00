use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::modules::shape::{by_products, volume};
use crate::engine::sizes::sizes;
use layerspec::layers::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool2d, AvgPool1d,
    AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d,
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

impl Differentiable for MaxPool3d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        if by_products::are_needed(input)? {
            return Ok(vec![max_by_images(self, input)?]);
        }
        let (kernel, stride) = (sizes(&self.kernel_size)?, sizes(&self.stride)?);
        let (padding, dilation) = (sizes(&self.padding)?, sizes(&self.dilation)?);
        Ok(vec![input.f_max_pool3d(kernel, stride, padding, dilation, self.ceil_mode)?])
    }
}

/// Of equal elements both ways take the first, which alone gets the gradient.
fn max_by_images(layer: &MaxPool3d, input: &Tensor) -> Result<Tensor, TensorError> {
    let pool = |image: &Tensor, numbers: WindowPart| -> Result<Tensor, TensorError> {
        let of = |each: [u64; 3], neutral| sizes(&numbers(each, neutral));
        Ok(image.f_max_pool2d(
            of(layer.kernel_size, 1)?,
            of(layer.stride, 1)?,
            of(layer.padding, 0)?,
            of(layer.dilation, 1)?,
            layer.ceil_mode,
        )?)
    };
    volume::by_images(input, |image| pool(image, of_image), |columns| pool(columns, of_depth))
}

/// The numbers of a volume's window that are those of a window of images. The second argument is
/// the number that changes nothing.
type WindowPart = fn([u64; 3], u64) -> [u64; 2];

fn of_image([_, height, width]: [u64; 3], _: u64) -> [u64; 2] {
    [height, width]
}

fn of_depth([depth, _, _]: [u64; 3], neutral: u64) -> [u64; 2] {
    [depth, neutral]
}

impl Differentiable for AvgPool3d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        if by_products::are_needed(input)? {
            return Ok(vec![mean_by_images(self, input)?]);
        }
        let (kernel, stride, padding) =
            (sizes(&self.kernel_size)?, sizes(&self.stride)?, sizes(&self.padding)?);
        let (ceil_mode, count_pad, divisor) =
            (self.ceil_mode, self.count_include_pad, self.divisor_override);
        Ok(vec![input.f_avg_pool3d(kernel, stride, padding, ceil_mode, count_pad, divisor)?])
    }
}

/// The number of elements of a window is a product of those of its images and of its depth.
fn mean_by_images(layer: &AvgPool3d, input: &Tensor) -> Result<Tensor, TensorError> {
    // A sum, if another number divides it.
    let divisor: Option<i64> = layer.divisor_override.map(|_| 1);
    let pool = |image: &Tensor, numbers: WindowPart| -> Result<Tensor, TensorError> {
        let of = |each: [u64; 3], neutral| sizes(&numbers(each, neutral));
        Ok(image.f_avg_pool2d(
            of(layer.kernel_size, 1)?,
            of(layer.stride, 1)?,
            of(layer.padding, 0)?,
            layer.ceil_mode,
            layer.count_include_pad,
            divisor,
        )?)
    };
    let pooled =
        volume::by_images(input, |image| pool(image, of_image), |columns| pool(columns, of_depth))?;
    match layer.divisor_override {
        Some(divisor) => Ok(pooled.f_div_scalar(divisor)?),
        None => Ok(pooled),
    }
}

impl Differentiable for AdaptiveAvgPool3d {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (input, to) = (single_input_ref(inputs)?, sizes(&self.output_size)?);
        let [depth, height, width] = to[..] else {
            return Err(layer_error("expected three output sizes"));
        };
        if !by_products::are_needed(input)? {
            return Ok(vec![input.f_adaptive_avg_pool3d(to)?]);
        }
        Ok(vec![mean_of_volumes(input, [depth, height, width])?])
    }
}

/// [`mean_of_regions`] of volumes.
fn mean_of_volumes(
    input: &Tensor,
    [depth, height, width]: [i64; 3],
) -> Result<Tensor, TensorError> {
    volume::by_images(
        input,
        |image| mean_of_regions(image, [height, width]),
        |columns| volume::place_by_place(columns, |column| mean_of_regions(column, [depth, 1])),
    )
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

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    /// A volume with equal elements in its windows.
    fn volume() -> Tensor {
        let size = [2, 3, 7, 6, 5];
        let numbers = Tensor::arange(2 * 3 * 7 * 6 * 5, (Kind::Float, Device::Cpu));
        ((numbers * 0.37).sin() * 8.0).round().view(size)
    }

    /// Compares outputs, and gradients of the volume.
    #[track_caller]
    fn assert_same(found: impl Fn(&Tensor) -> Tensor, expected: impl Fn(&Tensor) -> Tensor) {
        let run = |pool: &dyn Fn(&Tensor) -> Tensor| {
            let leaf = volume().set_requires_grad(true);
            let output = pool(&leaf);
            let weights = Tensor::arange(output.numel() as i64, (Kind::Float, Device::Cpu));
            (output.flatten(0, -1) * weights.cos()).sum(Kind::Float).backward();
            [output.detach(), leaf.grad()]
        };
        for (found, expected) in run(&found).into_iter().zip(run(&expected)) {
            assert_eq!(found.size(), expected.size());
            let error = (found - expected).abs().max().double_value(&[]);
            assert!(error < 1e-5, "{error:e}");
        }
    }

    #[test]
    fn the_largest_of_a_volume_is_that_of_its_images() {
        for (padding, dilation, ceil_mode) in
            [([0; 3], [1; 3], false), ([1, 1, 0], [1, 2, 1], true), ([1; 3], [2, 1, 1], false)]
        {
            let (kernel_size, stride) = ([3, 2, 2], [2, 1, 2]);
            let layer = MaxPool3d { kernel_size, stride, padding, dilation, ceil_mode };
            let of = |numbers: [u64; 3]| sizes(&numbers).unwrap();
            assert_same(
                |leaf| max_by_images(&layer, leaf).unwrap(),
                |leaf| {
                    let (padding, dilation) = (of(padding), of(dilation));
                    leaf.max_pool3d(of(kernel_size), of(stride), padding, dilation, ceil_mode)
                },
            );
        }
    }

    #[test]
    fn the_mean_of_a_volume_is_that_of_its_images() {
        for (ceil_mode, count_include_pad, divisor_override) in
            [(false, true, None), (true, false, None), (true, true, None), (false, true, Some(-5))]
        {
            let (kernel_size, stride, padding) = ([3, 2, 3], [2, 1, 2], [1, 0, 1]);
            let layer = AvgPool3d {
                kernel_size,
                stride,
                padding,
                ceil_mode,
                count_include_pad,
                divisor_override,
            };
            let of = |numbers: [u64; 3]| sizes(&numbers).unwrap();
            assert_same(
                |leaf| mean_by_images(&layer, leaf).unwrap(),
                |leaf| {
                    let (kernel, stride, padding) = (of(kernel_size), of(stride), of(padding));
                    let (counts, divisor) = (count_include_pad, divisor_override);
                    leaf.avg_pool3d(kernel, stride, padding, ceil_mode, counts, divisor)
                },
            );
        }
    }

    #[test]
    fn means_of_regions_of_a_volume_are_libtorchs() {
        for to in [[1, 1, 1], [7, 3, 5], [3, 4, 2], [9, 6, 1]] {
            assert_same(
                |leaf| mean_of_volumes(leaf, to).unwrap(),
                |leaf| leaf.adaptive_avg_pool3d(to),
            );
        }
    }
}
