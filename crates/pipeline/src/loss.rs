//! Loss functions, by PyTorch's names, with its arguments and defaults.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A loss that the stage with the model's first output computes against the target.
///
/// Each reduces by the mean, over samples or over the targets that count ([`LossSpec::classes`]). A
/// step's loss is the sum over its microbatches, each weighted by its share of the batch's samples
/// or targets. So uneven microbatches are correct, in samples and in tokens.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum LossSpec {
    /// `torch.nn.MSELoss`: target has the output's shape and dtype.
    MSELoss,
    /// `torch.nn.L1Loss`: as MSELoss.
    L1Loss,
    /// `torch.nn.SmoothL1Loss`: as MSELoss.
    SmoothL1Loss {
        /// The error at which the square becomes a line: 0 or more, 1 by default.
        beta: f64,
    },
    /// `torch.nn.HuberLoss`: as MSELoss.
    HuberLoss {
        /// The error at which the square becomes a line: above 0, 1 by default.
        delta: f64,
    },
    /// `torch.nn.CrossEntropyLoss`: output `[N, C, ...]` holds logits, target `[N, ...]` int64
    /// classes. With [`ClassDim::Last`] the output is `[N, ..., C]`.
    CrossEntropyLoss {
        /// The weights and the dimension of classes.
        classes: Classes,
        /// From 0 (none) to 1.
        label_smoothing: f64,
    },
    /// `torch.nn.NLLLoss`: output `[N, C, ...]` holds logarithms of probabilities, target `[N,
    /// ...]` int64 classes. With [`ClassDim::Last`] the output is `[N, ..., C]`.
    NLLLoss {
        /// The weights and the dimension of classes.
        classes: Classes,
    },
    /// `torch.nn.BCELoss`: output and target of one shape hold probabilities.
    BCELoss,
    /// `torch.nn.BCEWithLogitsLoss`: output holds logits, target probabilities.
    BCEWithLogitsLoss {
        /// The weight of positive examples, for each element of the last dimension (or one for
        /// all). If empty, it is 1.
        pos_weight: Vec<f64>,
    },
    /// `torch.nn.KLDivLoss`: output holds logarithms of probabilities, target probabilities.
    KLDivLoss {
        /// The target holds logarithms too.
        log_target: bool,
        /// Divide by samples rather than elements: `reduction: batchmean`, which is the
        /// divergence's mathematical mean.
        batchmean: bool,
    },
}

/// The weights and the dimension of classes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Classes {
    /// The weight of each class. If empty, every weight is 1.
    pub weight: Vec<f64>,
    /// Targets of this class are ignored.
    pub ignore_index: i64,
    /// The dimension of the output that holds the classes.
    pub class_dim: ClassDim,
}

/// The dimension of an output that holds one number for each class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ClassDim {
    /// `class_dim: 1`, as in PyTorch: `[N, C, ...]`.
    #[default]
    Second,
    /// `class_dim: -1`: `[N, ..., C]`, as a language model's `Linear` gives logits.
    Last,
}

impl ClassDim {
    /// The dimension as PyTorch numbers it: 1 or -1.
    pub fn dim(self) -> i64 {
        match self {
            ClassDim::Second => 1,
            ClassDim::Last => -1,
        }
    }

    /// The position of the classes in an output of `rank` dimensions. `None` if the output has
    /// fewer than two dimensions.
    pub fn position(self, rank: usize) -> Option<usize> {
        let last = rank.checked_sub(1).filter(|last| *last > 0)?;
        Some(match self {
            ClassDim::Second => 1,
            ClassDim::Last => last,
        })
    }
}

impl Default for Classes {
    /// Equal weights, PyTorch's `ignore_index` and PyTorch's dimension.
    fn default() -> Self {
        Classes { weight: Vec::new(), ignore_index: -100, class_dim: ClassDim::Second }
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

    /// The weights and the dimension of classes, if targets are numbers of classes. The mean is
    /// then over the targets that count, otherwise over samples.
    pub fn classes(&self) -> Option<&Classes> {
        match self {
            LossSpec::CrossEntropyLoss { classes, .. } | LossSpec::NLLLoss { classes } => {
                Some(classes)
            }
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
