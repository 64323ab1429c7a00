//! Whether the other end takes what it is sent. All that waits for one that never reads would stay in memory for as long as
//! it says that it is there.

use bytes::Bytes;
use quinn::{SendStream, WriteError};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of checks without progress of a waiting write after which a connection is useless.
const MAX_STALLED_CHECKS: u32 = 40;

/// The progress of a connection's writers, for its checks.
#[derive(Default)]
pub(crate) struct SendProgress {
    waiting: AtomicUsize,
    taken: AtomicU64,
}

/// Something waits, until this is dropped.
pub(crate) struct PendingWrite<'a>(&'a SendProgress);

impl SendProgress {
    pub(crate) fn begin_write(&self) -> PendingWrite<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        PendingWrite(self)
    }

    /// Something was taken.
    pub(crate) fn record_progress(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes chunks, and counts them piece by piece: a large tensor may take a slow line long.
    pub(crate) async fn write(&self, stream: &mut SendStream, mut chunks: &mut [Bytes]) -> Result<(), WriteError> {
        let _waits = self.begin_write();
        while !chunks.is_empty() {
            let written = stream.write_chunks(chunks).await?;
            self.record_progress();
            chunks = chunks.get_mut(written.chunks..).unwrap_or_default();
        }
        Ok(())
    }
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Looks now and then. Checks are counted instead of time, because this process may have stood
/// still itself.
#[derive(Default)]
pub(crate) struct StallDetector {
    taken: u64,
    idle_checks: u32,
}

impl StallDetector {
    /// Whether the other end takes nothing any more.
    pub(crate) fn is_stuck(&mut self, progress: &SendProgress) -> bool {
        let taken = progress.taken.load(Ordering::Relaxed);
        let waits = progress.waiting.load(Ordering::Relaxed) > 0;
        self.idle_checks = if waits && taken == self.taken { self.idle_checks + 1 } else { 0 };
        self.taken = taken;
        self.idle_checks >= MAX_STALLED_CHECKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_peer_is_detected_and_a_slow_one_is_not() {
        let (progress, mut looks) = (SendProgress::default(), StallDetector::default());
        assert!((0..2 * MAX_STALLED_CHECKS).all(|_| !looks.is_stuck(&progress)), "nothing waits");
        let waits = progress.begin_write();
        for _ in 0..3 {
            assert!((1..MAX_STALLED_CHECKS).all(|_| !looks.is_stuck(&progress)));
            progress.record_progress();
        }
        assert!((0..MAX_STALLED_CHECKS).all(|_| !looks.is_stuck(&progress)) && looks.is_stuck(&progress));
        drop(waits);
        assert!(!looks.is_stuck(&progress));
    }
}
