//! The result of a run.

use crate::train::validation_result::ValidationResult;
use std::path::PathBuf;
use std::time::Duration;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Training steps done.
    pub steps: u64,
    /// The time spent in steps and in validation.
    pub time: Duration,
    /// The score of the epoch with the lowest validation loss, and the number of steps until then.
    pub best: Option<(u64, ValidationResult)>,
    /// The score of the final weights on the test data, if there is any.
    pub test: Option<ValidationResult>,
    /// The file of the final weights, if they were saved.
    pub weights: Option<PathBuf>,
    /// The file of the weights of the best epoch, if there is one.
    pub best_weights: Option<PathBuf>,
    /// Set if the user ended the run before its last step.
    pub interrupted: Option<Interruption>,
}

/// What an interrupted run has saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interruption {
    /// The last step that is done. 0 if training had not begun.
    pub step: u64,
    /// The file of the weights after that step, if they were saved.
    pub weights: Option<PathBuf>,
    /// The step of the newest checkpoint, from which the run can resume. It may be older.
    pub checkpoint: Option<u64>,
}
