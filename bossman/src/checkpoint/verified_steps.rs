//! The checkpoints that this process has proven to be whole or useless.

use std::collections::BTreeSet;

/// The checkpoints that this process has written, read or tried to read. Nothing is known of
/// others.
#[derive(Debug, Default)]
pub(super) struct VerifiedSteps {
    whole: BTreeSet<u64>,
    useless: BTreeSet<u64>,
}

impl VerifiedSteps {
    /// Records that all files were written, or read and compared.
    pub(super) fn note_whole(&mut self, step: u64) {
        self.useless.remove(&step);
        self.whole.insert(step);
    }

    /// Records that a file is damaged, or that there is no manifest.
    pub(super) fn note_useless(&mut self, step: u64) {
        self.whole.remove(&step);
        self.useless.insert(step);
    }

    /// Records that a checkpoint was deleted.
    pub(super) fn note_gone(&mut self, step: u64) {
        self.whole.remove(&step);
        self.useless.remove(&step);
    }

    /// Whether it was written, or read and compared.
    pub(super) fn is_whole(&self, step: u64) -> bool {
        self.whole.contains(&step)
    }

    /// The newest whole one.
    pub(super) fn newest_whole(&self) -> Option<u64> {
        self.whole.last().copied()
    }

    /// Whether it was found damaged or without a manifest.
    pub(super) fn is_useless(&self, step: u64) -> bool {
        self.useless.contains(&step)
    }
}
