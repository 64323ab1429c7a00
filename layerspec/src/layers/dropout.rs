use super::arguments::expect_floating;
use super::elementwise::elementwise;
use super::spatial::spatial_dims;
use super::{layer, Rules};
use crate::yaml::PROBABILITY;
use crate::{Dim, OutOfRange, TensorType};

layer! {
    /// While training, sets each element to zero with probability `p` and divides the others by
    /// `1 - p`; otherwise gives its input on unchanged.
    Dropout {
        /// Probability that an element is set to zero.
        p: f64 = PROBABILITY, or 0.5;
    }
    unsupported { inplace: "the result is the same without it"; }
}

layer! {
    /// While training, sets each channel of `[batch, channels, height, width]` to zero with
    /// probability `p` and divides the others by `1 - p`; otherwise gives its input on unchanged.
    Dropout2d {
        /// Probability that a channel is set to zero.
        p: f64 = PROBABILITY, or 0.5;
    }
    unsupported { inplace: "the result is the same without it"; }
}

elementwise! { Dropout: 2 }

impl Rules for Dropout2d {
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        expect_floating(&inputs[0])?;
        spatial_dims::<2>(&inputs[0])?;
        Ok(inputs.to_vec())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        Dim::product(inputs[0].dims())
    }
}
