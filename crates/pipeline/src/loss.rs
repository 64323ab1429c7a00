//! Loss functions, by PyTorch's names, with its arguments and defaults.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A loss that the stage with the model's first output computes against the target.
///
/// Each reduces by the mean, over samples or over the targets that count ([`LossSpec::classes`]). A step's loss is the sum over its microbatches,
/// each weighted by its share of what the batch counts, so uneven microbatches are right, in samples and in tokens.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum LossSpec {
    /// `torch.nn.MSELoss`: target has the output's shape and dtype.
    MSELoss,
    /// `torch.nn.L1Loss`: as MSELoss.
    L1Loss,
    /// `torch.nn.SmoothL1Loss`: as MSELoss.
    SmoothL1Loss {
        /// Where the square turns into a line; 0 or more, 1 by default.
        beta: f64,
    },
    /// `torch.nn.HuberLoss`: as MSELoss.
    HuberLoss {
        /// Where the square turns into a line; above 0, 1 by default.
        delta: f64,
    },
    /// `torch.nn.CrossEntropyLoss`: output `[N, C, ...]` holds logits, target `[N, ...]` int64 classes.
    CrossEntropyLoss {
        /// Which classes count, and how much.
        classes: Classes,
        /// From 0 (none) to 1.
        label_smoothing: f64,
    },
    /// `torch.nn.NLLLoss`: output `[N, C, ...]` holds logarithms of probabilities, target `[N, ...]` int64 classes.
    NLLLoss {
        /// Which classes count, and how much.
        classes: Classes,
    },
    /// `torch.nn.BCELoss`: output and target of one shape hold probabilities.
    BCELoss,
    /// `torch.nn.BCEWithLogitsLoss`: output holds logits, target probabilities.
    BCEWithLogitsLoss {
        /// How much positive examples count, for each element of the last dimension (or one for all); empty for 1.
        pos_weight: Vec<f64>,
    },
    /// `torch.nn.KLDivLoss`: output holds logarithms of probabilities, target probabilities.
    KLDivLoss {
        /// The target holds logarithms too.
        log_target: bool,
        /// Divide by samples rather than elements: `reduction: batchmean`, which is the divergence's mathematical mean.
        batchmean: bool,
    },
}

/// Which classes count, and how much.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Classes {
    /// For each class; empty for 1.
    pub weight: Vec<f64>,
    /// Targets of this class count nothing.
    pub ignore_index: i64,
}

impl Default for Classes {
    /// All alike, and PyTorch's `ignore_index`.
    fn default() -> Self {
        Classes { weight: Vec::new(), ignore_index: -100 }
    }
}

impl LossSpec {
    /// Every loss's name.
    pub const NAMES: [&'static str; 9] = [
        "MSELoss",
        "L1Loss",
        "SmoothL1Loss",
        "HuberLoss",
        "CrossEntropyLoss",
        "NLLLoss",
        "BCELoss",
        "BCEWithLogitsLoss",
        "KLDivLoss",
    ];

    /// Cross-entropy with PyTorch's defaults.
    pub fn cross_entropy() -> Self {
        LossSpec::CrossEntropyLoss { classes: Classes::default(), label_smoothing: 0.0 }
    }

    /// Where targets are numbers of classes: which count, and how much. The mean is then over these targets; else it is
    /// over samples.
    pub fn classes(&self) -> Option<&Classes> {
        match self {
            LossSpec::CrossEntropyLoss { classes, .. } | LossSpec::NLLLoss { classes } => Some(classes),
            _ => None,
        }
    }

    /// PyTorch's name of it.
    pub fn name(&self) -> &'static str {
        match self {
            LossSpec::MSELoss => "MSELoss",
            LossSpec::L1Loss => "L1Loss",
            LossSpec::SmoothL1Loss { .. } => "SmoothL1Loss",
            LossSpec::HuberLoss { .. } => "HuberLoss",
            LossSpec::CrossEntropyLoss { .. } => "CrossEntropyLoss",
            LossSpec::NLLLoss { .. } => "NLLLoss",
            LossSpec::BCELoss => "BCELoss",
            LossSpec::BCEWithLogitsLoss { .. } => "BCEWithLogitsLoss",
            LossSpec::KLDivLoss { .. } => "KLDivLoss",
        }
    }
}

impl fmt::Display for LossSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
