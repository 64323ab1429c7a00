//! The position of training between two calls.

use pipeline::loss_scale::LossScale;
use pipeline::message::Mode;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// The counters of training. With the seed, they determine random draws and the learning rate.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Training steps done. Dropout depends on it.
    pub step: u64,
    /// Optimizer steps done. The learning rate depends on it.
    pub updates: u64,
    /// The loss scale of float16.
    pub loss_scale: Option<LossScale>,
}

impl Counters {
    /// The hashes of its values as JSON, for the digest of a state.
    pub(crate) fn hashes(&self) -> BTreeMap<String, [u8; 32]> {
        // Writing a struct of numbers as JSON cannot fail.
        let scale = serde_json::to_string(&self.loss_scale).unwrap_or_default();
        let values = [
            ("step", self.step.to_string()),
            ("updates", self.updates.to_string()),
            ("loss_scale", scale),
        ];
        let hash = |(name, value): (&str, String)| {
            (format!("counters/{name}"), Sha256::digest(value).into())
        };
        values.into_iter().map(hash).collect()
    }
}

/// The position of training: its counters, and what waits for a backward pass or an update.
pub(crate) struct Position {
    pub(crate) mode: Mode,
    /// The number of the last batch. Each round takes a new one, so that late tensors of a failed
    /// batch are dropped wherever they arrive.
    pub(crate) batch: u64,
    pub(crate) counters: Counters,
    pub(crate) accumulated: AccumulatedGradients,
    pub(crate) in_flight: BatchesInFlight,
}

impl Position {
    /// The position before the first step.
    pub(crate) fn new(loss_scale: Option<LossScale>) -> Self {
        Position {
            mode: Mode::Train,
            batch: 0,
            counters: Counters { loss_scale, ..Counters::default() },
            accumulated: AccumulatedGradients::default(),
            in_flight: BatchesInFlight::default(),
        }
    }

    /// Begins from nothing. Mode and batch stay: a late tensor is known by its batch's number.
    pub(crate) fn begin_again(&mut self, loss_scale: Option<LossScale>) {
        let Position { mode, batch, .. } = *self;
        *self = Position { mode, batch, ..Position::new(loss_scale) };
    }

    /// Takes the number of a new batch.
    pub(crate) fn next_batch(&mut self) -> u64 {
        self.batch += 1;
        self.batch
    }

    /// Continues from these counters. A loss scale counts only if the precision needs one.
    pub(crate) fn resume_from(&mut self, counters: Counters) {
        let needed = self.counters.loss_scale;
        let loss_scale = needed.and(counters.loss_scale).or(needed);
        self.counters = Counters { loss_scale, ..counters };
    }

    /// Forgets batches and gradients that the workers no longer have.
    pub(crate) fn clear_in_flight(&mut self) {
        self.in_flight = BatchesInFlight::default();
        self.accumulated = AccumulatedGradients::default();
    }

    /// Whether workers hold nothing besides the training state.
    pub(crate) fn is_idle(&self) -> bool {
        !self.accumulated.is_pending() && self.in_flight.batches.is_empty()
    }

    /// Whether no steps wait for an update.
    pub(crate) fn is_between_updates(&self) -> bool {
        self.accumulated.steps == 0
    }
}

/// Gradients that were accumulated over several steps and wait for an update.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct AccumulatedGradients {
    pub(crate) steps: u32,
    /// The weight over which the loss takes its mean: samples, or targets.
    pub(crate) counted: f64,
    /// The divisor of the losses: the weight if all steps were as large as the first, divided by
    /// the loss scale of float16 ([`pipeline::loss_scale`]).
    pub(crate) divisor: f64,
    /// Whether a batch went backward by a call of its own.
    pub(crate) has_manual_backward: bool,
}

impl AccumulatedGradients {
    /// Whether gradients wait for an update.
    pub(crate) fn is_pending(&self) -> bool {
        self.steps > 0 || self.has_manual_backward
    }

    /// These gradients and those of one more step of weight `counted`, of the `accumulate` steps
    /// until the update.
    pub(crate) fn with_step(
        mut self,
        counted: f64,
        accumulate: u32,
        loss_scale: Option<LossScale>,
    ) -> Self {
        // Steps without a target that counts have gradients of 0, whatever the divisor.
        if self.counted == 0.0 {
            let scale = loss_scale.map_or(1.0, |scale| scale.get());
            let counted = if counted > 0.0 { counted } else { 1.0 };
            self.divisor = counted * f64::from(accumulate) / scale;
        }
        self.steps += 1;
        self.counted += counted;
        self
    }

    /// The factor by which the update multiplies the gradients.
    pub(crate) fn gradient_scale(&self) -> f64 {
        if self.steps == 0 {
            1.0
        } else {
            self.divisor / self.counted
        }
    }
}

/// A batch of [`crate::BossMan::forward_batch`] that waits for its backward pass.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(crate) u64);

/// Batches that went forward in training mode and wait for their backward pass.
#[derive(Default)]
pub(crate) struct BatchesInFlight {
    pub(crate) batches: BTreeSet<u64>,
    /// The batch of [`crate::BossMan::forward`].
    pub(crate) implicit_batch: Option<u64>,
    /// A batch whose outputs nobody has yet. If it is still here when the next call begins, the
    /// future of its forward pass was dropped.
    pub(crate) unclaimed: Option<u64>,
}

impl BatchesInFlight {
    /// Removes a batch. Returns whether it was in flight.
    pub(crate) fn remove(&mut self, batch: u64) -> bool {
        if self.implicit_batch == Some(batch) {
            self.implicit_batch = None;
        }
        if self.unclaimed == Some(batch) {
            self.unclaimed = None;
        }
        self.batches.remove(&batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the mean over both batches at once.
    #[test]
    fn a_step_without_a_target_that_counts_leaves_the_mean_of_the_others() {
        let of = |counts: [f64; 2]| {
            let start = AccumulatedGradients::default();
            counts.into_iter().fold(start, |sum, counted| sum.with_step(counted, 2, None))
        };
        for counts in [[8.0, 0.0], [0.0, 8.0]] {
            let accumulated = of(counts);
            // The loss of the batch that counts has the weight 8 / divisor.
            assert_eq!(8.0 / accumulated.divisor * accumulated.gradient_scale(), 1.0, "{counts:?}");
        }
        assert!(of([0.0, 0.0]).counted == 0.0);
    }
}
