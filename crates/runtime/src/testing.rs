//! Tasks and sums of gradients as a worker computes them, for tests without a run.

use crate::compute::Compute;
use crate::reduction::{sums, tree};
use crate::task_tensor::TaskTensor;
use link::memory::pool::BufferPool;
use link::Payload;
use pipeline::effect::{Residuals, Summing};
use pipeline::message::Failure;
use pipeline::replicas::Node;
use pipeline::task::{EarlyOutput, Outcome, Task, TaskError};

/// Runs a task, and waits for the device.
///
/// # Errors
/// The task failed.
pub fn run_to_end(
    compute: &mut impl Compute,
    task: Task<TaskTensor>,
    emit: &mut dyn FnMut(EarlyOutput<TaskTensor>),
) -> Result<Outcome<TaskTensor>, TaskError> {
    let mut outcome = compute.run(task, emit)?;
    if let Some(work) = compute.pending() {
        work.complete(&mut outcome)?;
    }
    Ok(outcome)
}

/// Sums the slices of nodes along the tree over `microbatches`, as a worker does for its shards.
///
/// # Errors
/// The slices do not belong together.
pub fn sum(microbatches: u32, sums: &[(Node, Vec<Payload>)]) -> Result<Vec<Payload>, Failure> {
    tree::tree_sum(microbatches, sums, &BufferPool::default())
}

/// The sums of a worker, with the residuals of compression.
#[derive(Default)]
pub struct Reducer(sums::Reducer);

impl Reducer {
    /// Executes a [`StageEffect::Sum`](pipeline::effect::StageEffect::Sum).
    ///
    /// # Errors
    /// The slices do not belong together.
    pub fn reduce(
        &mut self,
        summing: Summing,
        sums: &[(Node, Vec<Payload>)],
    ) -> Result<Vec<Payload>, Failure> {
        self.0.reduce(summing, sums)
    }

    /// Executes a [`StageEffect::Residuals`](pipeline::effect::StageEffect::Residuals).
    pub fn settle(&mut self, residuals: Residuals) {
        self.0.settle(residuals);
    }
}
