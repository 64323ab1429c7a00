//! The mode of a pass through a model.

use serde::{Deserialize, Serialize};

/// Whether layers behave as in training (dropout, batch statistics) and keep what backward needs.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mode {
    /// Training.
    Train,
    /// Evaluation.
    Eval,
}
