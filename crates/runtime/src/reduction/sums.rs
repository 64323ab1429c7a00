//! What the sum thread is asked for, and what it remembers from one time to the next.

use crate::reduction::compressed::{sum_compressed, sum_in_turn};
use crate::reduction::residuals::Residuals;
use crate::reduction::tree::sum;
use link::memory::pool::Pool;
use link::Payload;
use pipeline::effect::{Residuals as What, Summing};
use pipeline::message::Failure;
use pipeline::replicas::Node;

/// Sums of gradients, in the order in which they are asked for.
#[derive(Default)]
pub(crate) struct Sums {
    residuals: Residuals,
}

impl Sums {
    /// Sums the slices of each node, as [`StageEffect::Sum`](pipeline::effect::StageEffect::Sum) says.
    pub(crate) fn take(&mut self, summing: Summing, sums: &[(Node, Vec<Payload>)]) -> Result<Vec<Payload>, Failure> {
        let pool = &Pool::of_process();
        match summing {
            Summing::Tree(microbatches) => sum(microbatches, sums, pool),
            Summing::Compressed(compress, part) => {
                let slices = sums.first().map_or(0, |(_, slices)| slices.len());
                sum_compressed(compress, sums, self.residuals.of(part, slices), pool)
            }
            Summing::InTurn => sum_in_turn(sums, pool),
        }
    }

    /// As [`StageEffect::Residuals`](pipeline::effect::StageEffect::Residuals) says.
    pub(crate) fn settle(&mut self, what: What) {
        self.residuals.settle(what);
    }
}
