//! The failure of a task.

use crate::failure::Failure;

/// The failure of a task of the compute thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskError {
    /// The error.
    pub failure: Failure,
    /// Whether the task had begun to update parameters, so that they may have changed.
    pub updated: bool,
}

impl From<Failure> for TaskError {
    fn from(failure: Failure) -> Self {
        TaskError { failure, updated: false }
    }
}
