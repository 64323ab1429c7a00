//! The work of the reduction thread, and its state between sums.

use crate::reduction::compressed::{reduce_compressed, reduce_in_order};
use crate::reduction::residuals::ErrorFeedback;
use crate::reduction::tree::tree_sum;
use link::memory::pool::BufferPool;
use link::Payload;
use pipeline::effect::{Residuals as ResidualUpdate, Summing};
use pipeline::message::Failure;
use pipeline::replicas::Node;

/// Computes sums of gradients in the order of the requests.
#[derive(Default)]
pub(crate) struct Reducer {
    residuals: ErrorFeedback,
}

impl Reducer {
    /// Executes a [`StageEffect::Sum`](pipeline::effect::StageEffect::Sum).
    ///
    /// # Errors
    /// The slices do not belong together.
    pub(crate) fn reduce(
        &mut self,
        summing: Summing,
        sums: &[(Node, Vec<Payload>)],
    ) -> Result<Vec<Payload>, Failure> {
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

    /// Executes a [`StageEffect::Residuals`](pipeline::effect::StageEffect::Residuals).
    pub(crate) fn settle(&mut self, update: ResidualUpdate) {
        self.residuals.settle(update);
    }
}
