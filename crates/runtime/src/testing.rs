//! Sums as a worker takes them, for tests without a run.

use crate::reduction::{sums, tree};
use link::memory::pool::BufferPool;
use link::Payload;
use pipeline::effect::{Residuals, Summing};
use pipeline::message::Failure;
use pipeline::replicas::Node;

/// Sums slices for each node along the tree over `microbatches`, as a worker does for its shards.
pub fn sum(microbatches: u32, sums: &[(Node, Vec<Payload>)]) -> Result<Vec<Payload>, Failure> {
    tree::tree_sum(microbatches, sums, &BufferPool::default())
}

/// Sums beside a compute thread, with the residuals of compression.
#[derive(Default)]
pub struct Reducer(sums::Reducer);

impl Reducer {
    /// Carries out a [`StageEffect::Sum`](pipeline::effect::StageEffect::Sum).
    pub fn reduce(&mut self, summing: Summing, sums: &[(Node, Vec<Payload>)]) -> Result<Vec<Payload>, Failure> {
        self.0.reduce(summing, sums)
    }

    /// Carries out a [`StageEffect::Residuals`](pipeline::effect::StageEffect::Residuals).
    pub fn settle(&mut self, what: Residuals) {
        self.0.settle(what);
    }
}
