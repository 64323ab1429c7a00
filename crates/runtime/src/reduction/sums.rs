//! The work of the reduction thread, and its state between sums.

use crate::reduction::compressed::{reduce_compressed, reduce_in_order};
use crate::reduction::residuals::ErrorFeedback;
use crate::reduction::tree::tree_sum;
use link::memory::pool::BufferPool;
use link::Payload;
use pipeline::effect::{Residuals as ResidualUpdate, Summing};
use pipeline::message::Failure;
use pipeline::replicas::Node;

/// Sums of gradients, in the order in which they are asked for.
#[derive(Default)]
pub(crate) struct Reducer {
    residuals: ErrorFeedback,
}

impl Reducer {
    /// Sums the slices of each node, as [`StageEffect::Sum`](pipeline::effect::StageEffect::Sum) says.
    pub(crate) fn reduce(&mut self, summing: Summing, sums: &[(Node, Vec<Payload>)]) -> Result<Vec<Payload>, Failure> {
        let pool = &BufferPool::global();
        match summing {
            Summing::Tree(microbatches) => tree_sum(microbatches, sums, pool),
            Summing::Compressed(compress, part) => {
                let slices = sums.first().map_or(0, |(_, slices)| slices.len());
                reduce_compressed(compress, sums, self.residuals.of(part, slices), pool)
            }
            Summing::InTurn => reduce_in_order(sums, pool),
        }
    }

    /// As [`StageEffect::Residuals`](pipeline::effect::StageEffect::Residuals) says.
    pub(crate) fn settle(&mut self, what: ResidualUpdate) {
        self.residuals.settle(what);
    }
}
