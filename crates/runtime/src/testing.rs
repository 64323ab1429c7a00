//! Sums as a worker takes them, for tests without a run.

use crate::reduction::{sums, tree};
use link::memory::pool::Pool;
use link::Payload;
use pipeline::effect::{Residuals, Summing};
use pipeline::message::Failure;
use pipeline::replicas::Node;

/// Sums slices for each node along the tree over `microbatches`, as a worker does for its shards.
pub fn sum(microbatches: u32, sums: &[(Node, Vec<Payload>)]) -> Result<Vec<Payload>, Failure> {
    tree::sum(microbatches, sums, &Pool::default())
}

/// Sums beside a compute thread, with the residuals of compression.
#[derive(Default)]
pub struct Sums(sums::Sums);

impl Sums {
    /// Carries out an [`StageEffect::Sum`](pipeline::effect::StageEffect::Sum).
    pub fn take(&mut self, summing: Summing, sums: &[(Node, Vec<Payload>)]) -> Result<Vec<Payload>, Failure> {
        self.0.take(summing, sums)
    }

    /// Carries out an [`StageEffect::Residuals`](pipeline::effect::StageEffect::Residuals).
    pub fn settle(&mut self, what: Residuals) {
        self.0.settle(what);
    }
}
