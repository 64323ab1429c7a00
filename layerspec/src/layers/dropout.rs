use super::arguments::expect_floating;
use super::elementwise::elementwise;
use super::spatial::spatial_dims;
use super::{layer, Rules};
use crate::yaml::{Reader, PROBABILITY};
use crate::{Dim, OutOfRange, TensorType};
use serde::{Deserialize, Serialize};

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

/// What stochastic depth keeps or sets to zero as a whole.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DropPathMode {
    /// Each sample by itself.
    Row,
    /// All samples of a microbatch together.
    Batch,
}

const MODE: Reader<DropPathMode> =
    Reader::keyword("`row` or `batch`", &["row", "batch"], |node| match node.as_text()? {
        "row" => Some(DropPathMode::Row),
        "batch" => Some(DropPathMode::Batch),
        _ => None,
    });

layer! {
    /// Stochastic depth (Huang et al. 2016, arXiv:1603.09382), torchvision's `StochasticDepth`.
    /// While training, sets whole samples to zero with probability `p` and divides the others by
    /// `1 - p`; otherwise gives its input on unchanged.
    DropPath {
        /// Probability that a sample is set to zero.
        p: f64 = PROBABILITY;
        /// Whether each sample is drawn by itself (`row`), or the (micro)batch as one (`batch`).
        mode: DropPathMode = MODE, or DropPathMode::Row => "row";
    }
}

elementwise! { Dropout: 2; DropPath: 1 }

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
