//! Layers that change the size of images.

use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::modules::shape::by_products;
use crate::engine::sizes::{pair, size};
use layerspec::layers::{Interpolation, Pad, PadMode, PixelShuffle, PixelUnshuffle, Upsample};
use tch::{Device, Tensor};
use tensor::TensorError;

impl Differentiable for Pad {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        let is_gpu = matches!(input.device(), Device::Cuda(_));
        let repeats = matches!(self.mode, PadMode::Reflect | PadMode::Replicate);
        if is_gpu && repeats && self.pad.iter().all(|size| *size >= 0) {
            return Ok(vec![repeat_ends(input, &self.pad, self.mode)?]);
        }
        let value = (self.mode == PadMode::Constant).then_some(self.value);
        Ok(vec![input.f_pad(&self.pad[..], self.mode.name(), value)?])
    }
}

/// Pads with parts of the input, dimension after dimension. libtorch's kernels for GPUs have no
/// deterministic backward pass, or a wrong one: that of a reflection in two dimensions (2.11) loses
/// what is reflected at both ends of a row.
fn repeat_ends(input: &Tensor, pad: &[i64], mode: PadMode) -> Result<Tensor, TensorError> {
    let mut padded = input.shallow_clone();
    for (back, ends) in (1..).zip(pad.chunks_exact(2)) {
        let place = padded.dim().checked_sub(back);
        let place = place.ok_or_else(|| layer_error("expected more dimensions to pad"))?;
        let (dim, last) = (place as i64, padded.size()[place] - 1);
        let part = |first: i64, length: i64| -> Result<Option<Tensor>, TensorError> {
            if length == 0 {
                return Ok(None);
            }
            if mode == PadMode::Reflect {
                return Ok(Some(padded.f_narrow(dim, first, length)?.f_flip([dim])?));
            }
            let end = padded.f_narrow(dim, first, 1)?;
            let mut size = end.size();
            size[place] = length;
            Ok(Some(end.f_expand(size, false)?))
        };
        let (before, after) = match mode {
            PadMode::Reflect => (part(1, ends[0])?, part(last - ends[1], ends[1])?),
            _ => (part(0, ends[0])?, part(last, ends[1])?),
        };
        let parts: Vec<Tensor> =
            before.into_iter().chain([padded.shallow_clone()]).chain(after).collect();
        padded = Tensor::f_cat(&parts, dim)?;
    }
    Ok(padded)
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
        let resized = |image: &Tensor, to: [i64; 2]| -> Result<Tensor, TensorError> {
            Ok(match self.mode {
                Interpolation::Nearest => image.f_upsample_nearest2d(to, down, across)?,
                Interpolation::Bilinear => image.f_upsample_bilinear2d(to, align, down, across)?,
                Interpolation::Bicubic => image.f_upsample_bicubic2d(to, align, down, across)?,
            })
        };
        let has_kernel = self.mode == Interpolation::Nearest || !by_products::are_needed(input)?;
        Ok(vec![if has_kernel {
            resized(input, to)?
        } else {
            by_products::resize(input, to, resized)?
        }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    #[test]
    fn ends_are_repeated_as_libtorch_does_it() {
        let size = [2, 3, 4, 5];
        let input = (Tensor::arange(120, (Kind::Float, Device::Cpu)) * 0.37).sin().view(size);
        for pad in [&[1, 2][..], &[0, 3, 2, 0], &[4, 4, 3, 3]] {
            for (mode, name) in [(PadMode::Reflect, "reflect"), (PadMode::Replicate, "replicate")] {
                let gradient = |padded: &dyn Fn(&Tensor) -> Tensor| {
                    let leaf = input.copy().set_requires_grad(true);
                    let made = padded(&leaf);
                    let weights = Tensor::arange(made.numel() as i64, (Kind::Float, Device::Cpu));
                    (made.flatten(0, -1) * weights.cos()).sum(Kind::Float).backward();
                    (made.detach(), leaf.grad())
                };
                let (found, found_grad) = gradient(&|leaf| repeat_ends(leaf, pad, mode).unwrap());
                let (expected, expected_grad) = gradient(&|leaf| {
                    // libtorch pads one dimension of three, and two of four.
                    let whole = if pad.len() == 2 { leaf.view([6, 4, 5]) } else { leaf.view(size) };
                    whole.pad(pad, name, None)
                });
                assert!(found.flatten(0, -1).equal(&expected.flatten(0, -1)), "{name} {pad:?}");
                let error = (found_grad - expected_grad).abs().max().double_value(&[]);
                assert!(error < 1e-5, "{name} {pad:?}: {error:e}");
            }
        }
    }
}
