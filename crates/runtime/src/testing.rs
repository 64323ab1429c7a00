//! Sums of gradients as a worker computes them, for tests without a run.

use crate::reduction::{sums, tree};
use link::memory::pool::BufferPool;
use link::Payload;
use pipeline::effect::{Residuals, Summing};
use pipeline::message::Failure;
use pipeline::replicas::Node;

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
