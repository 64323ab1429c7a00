use super::{layer, Rules};
use crate::yaml::SIZE;
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// Makes an image larger by laying its channels side by side: `[.., channels * r * r, height,
    /// width]` becomes `[.., channels, height * r, width * r]`.
    PixelShuffle {
        /// `r`.
        upscale_factor: u64 = SIZE;
    }
}

layer! {
    /// Undoes `PixelShuffle`: `[.., channels, height * r, width * r]` becomes `[.., channels * r *
    /// r, height, width]`.
    PixelUnshuffle {
        /// `r`.
        downscale_factor: u64 = SIZE;
    }
}

/// The dimensions before the last three, and those: channels, height and width.
fn image(input: &TensorType) -> Result<(&[Dim], [&Dim; 3]), String> {
    match input.dims() {
        [outer @ .., channels, height, width] => Ok((outer, [channels, height, width])),
        _ => Err(format!("expected an input [.., channels, height, width], found {input}")),
    }
}

fn divided(what: &str, size: &Dim, by: u64, input: &TensorType) -> Result<Dim, String> {
    size.exact_div(by)
        .ok_or_else(|| format!("expected {what} that divides by {by}, found {size} in {input}"))
}

impl Rules for PixelShuffle {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (factor, input) = (self.upscale_factor, &inputs[0]);
        let (outer, [channels, height, width]) = image(input)?;
        let square = factor.checked_mul(factor).ok_or(OutOfRange)?;
        let channels = divided("a number of channels", channels, square, input)?;
        let dims = [outer, &[channels, height.times_number(factor)?, width.times_number(factor)?]]
            .concat();
        Ok(vec![TensorType::new(input.dtype, dims)])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}

impl Rules for PixelUnshuffle {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (factor, input) = (self.downscale_factor, &inputs[0]);
        let (outer, [channels, height, width]) = image(input)?;
        let channels = channels.times_number(factor)?.times_number(factor)?;
        let (height, width) = (
            divided("a height", height, factor, input)?,
            divided("a width", width, factor, input)?,
        );
        Ok(vec![TensorType::new(input.dtype, [outer, &[channels, height, width]].concat())])
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Ok(Dim::Fixed(0))
    }
}
