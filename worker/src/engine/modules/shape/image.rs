//! Layers that change the size of images.

use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::sizes::{pair, size};
use layerspec::layers::{Interpolation, Pad, PadMode, PixelShuffle, PixelUnshuffle, Upsample};
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for Pad {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let value = (self.mode == PadMode::Constant).then_some(self.value);
        Ok(vec![single_input_ref(inputs)?.f_pad(&self.pad[..], self.mode.name(), value)?])
    }
}

impl Differentiable for PixelShuffle {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![single_input_ref(inputs)?.f_pixel_shuffle(size(self.upscale_factor)?)?])
    }
}

impl Differentiable for PixelUnshuffle {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![single_input_ref(inputs)?.f_pixel_unshuffle(size(self.downscale_factor)?)?])
    }
}

impl Differentiable for Upsample {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        let [down, across] = self.scale_factor.map_or([None, None], |factors| factors.map(Some));
        let to = match (self.size, self.scale_factor, &input.size()[..]) {
            (Some(size), _, _) => pair(size)?,
            (None, Some([down, across]), &[_, _, height, width]) => {
                [(height as f64 * down) as i64, (width as f64 * across) as i64]
            }
            (_, _, size) => {
                return Err(layer_error(format!(
                    "expected an image and a size or a factor, got {size:?}"
                )))
            }
        };
        let align = self.align_corners.unwrap_or(false);
        Ok(vec![match self.mode {
            Interpolation::Nearest => input.f_upsample_nearest2d(to, down, across)?,
            Interpolation::Bilinear => input.f_upsample_bilinear2d(to, align, down, across)?,
            Interpolation::Bicubic => input.f_upsample_bicubic2d(to, align, down, across)?,
        }])
    }
}
