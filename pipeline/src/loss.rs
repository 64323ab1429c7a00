//! Loss functions, by PyTorch's names.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A loss that the stage with the model's first output computes against the target.
///
/// Both reduce by the mean over the microbatch; a step's loss is the sum over its microbatches,
/// each weighted by its share of the batch's samples, so uneven microbatches are right.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum LossSpec {
    /// `torch.nn.MSELoss`: target has the output's shape and dtype.
    MSELoss,
    /// `torch.nn.CrossEntropyLoss`: output `[N, C, ...]` holds logits, target `[N, ...]` int64 classes.
    CrossEntropyLoss {
        /// From 0 (none) to 1.
        label_smoothing: f64,
    },
}

impl LossSpec {
    /// Cross-entropy without label smoothing.
    pub const fn cross_entropy() -> Self {
        LossSpec::CrossEntropyLoss { label_smoothing: 0.0 }
    }
}

impl fmt::Display for LossSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossSpec::MSELoss => f.write_str("MSELoss"),
            LossSpec::CrossEntropyLoss { .. } => f.write_str("CrossEntropyLoss"),
        }
    }
}
