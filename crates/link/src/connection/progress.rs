//! Detects that the other end reads nothing. Everything sent to such a peer would stay in this
//! process's memory for as long as the peer sends keep-alive messages.

use bytes::Bytes;
use quinn::{SendStream, WriteError};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of checks without progress, while a write waits, after which a connection is closed.
const MAX_STALLED_CHECKS: u32 = 40;

/// The progress of a connection's writers, as [`StallDetector`] sees it.
#[derive(Default)]
pub(crate) struct SendProgress {
    waiting: AtomicUsize,
    written: AtomicU64,
}

/// A write that waits for the network, until this is dropped.
pub(crate) struct PendingWrite<'a>(&'a SendProgress);

impl SendProgress {
    /// Counts a waiting write.
    pub(crate) fn begin_write(&self) -> PendingWrite<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        PendingWrite(self)
    }

    /// Counts a part that the network took.
    pub(crate) fn record_progress(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes chunks, and counts each part: a large tensor may take long on a slow network.
    pub(crate) async fn write(
        &self,
        stream: &mut SendStream,
        mut chunks: &mut [Bytes],
    ) -> Result<(), WriteError> {
        let _pending = self.begin_write();
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

/// Compares the progress at regular checks. Counts checks instead of time, because this process may
/// have stood still itself.
///
/// A write makes no progress while what quinn has taken before goes out: on a slow line, longer
/// than all checks. So the stream frames that quinn sends count as progress, too, less the packets
/// that are lost. It sends none to a peer that reads nothing, as soon as that peer's window is
/// full, and to one that acknowledges nothing it sends lost ones again.
#[derive(Default)]
pub(crate) struct StallDetector {
    written: u64,
    /// The most so far: what is sent again counts when it is sent, and is lost later.
    arrived: u64,
    idle_checks: u32,
}

impl StallDetector {
    /// Makes a check, with the number of stream frames that quinn has sent on this connection, less
    /// that of lost packets. Returns whether the other end takes nothing any more.
    pub(crate) fn is_stuck(&mut self, progress: &SendProgress, arrived: u64) -> bool {
        let written = progress.written.load(Ordering::Relaxed);
        let waits = progress.waiting.load(Ordering::Relaxed) > 0;
        let is_idle = waits && written == self.written && arrived <= self.arrived;
        self.idle_checks = if is_idle { self.idle_checks + 1 } else { 0 };
        self.written = written;
        self.arrived = self.arrived.max(arrived);
        self.idle_checks >= MAX_STALLED_CHECKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FRAME-9.
    #[test]
    fn a_stalled_peer_is_detected_and_a_slow_one_is_not() {
        let (progress, mut detector) = (SendProgress::default(), StallDetector::default());
        assert!(
            (0..2 * MAX_STALLED_CHECKS).all(|_| !detector.is_stuck(&progress, 0)),
            "nothing waits"
        );
        let waits = progress.begin_write();
        for _ in 0..3 {
            assert!((1..MAX_STALLED_CHECKS).all(|_| !detector.is_stuck(&progress, 0)));
            progress.record_progress();
        }
        // A slow line: what quinn took before goes out, frame by frame.
        for frames in 1..4 {
            assert!((1..MAX_STALLED_CHECKS).all(|_| !detector.is_stuck(&progress, frames)));
        }
        assert!(
            (0..MAX_STALLED_CHECKS).all(|_| !detector.is_stuck(&progress, 4))
                && detector.is_stuck(&progress, 4)
        );
        // Lost packets are sent again and again.
        let mut detector = StallDetector { arrived: 4, written: 3, idle_checks: 0 };
        let again = |check: u32| 3 + u64::from(check % 2);
        assert!((1..MAX_STALLED_CHECKS).all(|n| !detector.is_stuck(&progress, again(n))));
        assert!(detector.is_stuck(&progress, again(MAX_STALLED_CHECKS)));
        drop(waits);
        assert!(!detector.is_stuck(&progress, 4));
    }
}
