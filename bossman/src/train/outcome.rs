//! The result of a run.

use crate::train::validation_result::ValidationResult;
use std::path::PathBuf;
use std::time::Duration;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Training steps done, with those of earlier processes.
    pub steps: u64,
    /// Those of earlier processes, which a resumed run goes on from.
    pub resumed_after: u64,
    /// The time that this process spent in steps and in validation.
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

/// The steps of a process and their time, for people. `before` is the number of steps of earlier
/// processes.
pub fn describe_steps(steps: u64, before: u64, time: Duration) -> String {
    let (here, seconds) = (steps.saturating_sub(before), time.as_secs_f64());
    match before {
        0 => format!("{steps} steps in {seconds:.1} s"),
        _ => format!("{here} steps in {seconds:.1} s, {steps} with those before"),
    }
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
