//! The results of the compute thread.

use crate::task_tensor::TaskTensor;
use pipeline::ids::Ticket;
use pipeline::task::{EarlyOutput, Outcome, TaskError};
use std::time::Instant;

/// A result of the compute thread. Results arrive in order.
pub(crate) enum ComputeEvent {
    EarlyOutput(EarlyOutput<TaskTensor>),
    Done(FinishedTask),
}

/// A task that has ended.
pub(crate) struct FinishedTask {
    pub(crate) ticket: Ticket,
    pub(crate) result: Result<Outcome<TaskTensor>, TaskError>,
    /// When the task began.
    pub(crate) start: Instant,
    /// When the task ended.
    pub(crate) end: Instant,
}
