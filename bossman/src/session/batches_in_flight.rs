//! Batches between their forward and their backward pass.

use std::collections::BTreeSet;

/// A batch that went forward by [`crate::BossMan::forward_batch`] and waits for its backward pass.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(crate) u64);

/// Batches that went forward in training mode and wait for their backward pass.
#[derive(Default)]
pub(crate) struct BatchesInFlight {
    pub(crate) batches: BTreeSet<u64>,
    /// The one of [`crate::BossMan::forward`].
    pub(crate) implicit_batch: Option<u64>,
}

impl BatchesInFlight {
    /// Whether it was there.
    pub(crate) fn remove(&mut self, batch: u64) -> bool {
        if self.implicit_batch == Some(batch) {
            self.implicit_batch = None;
        }
        self.batches.remove(&batch)
    }
}
