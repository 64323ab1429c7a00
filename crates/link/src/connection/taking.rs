//! Whether the other end takes what it is sent. All that waits for one that never reads would stay in memory for as long as
//! it says that it is there.

use bytes::Bytes;
use quinn::{SendStream, WriteError};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// After so many looks in which nothing was taken of what waits, a connection is of no use.
const MOST: u32 = 40;

/// What the writers of a connection tell those who look.
#[derive(Default)]
pub(crate) struct Taking {
    waiting: AtomicUsize,
    taken: AtomicU64,
}

/// Something waits, until this is dropped.
pub(crate) struct Waits<'a>(&'a Taking);

impl Taking {
    pub(crate) fn waits(&self) -> Waits<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waits(self)
    }

    /// Something was taken.
    pub(crate) fn took(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes chunks, and counts them piece by piece: a large tensor may take a slow line long.
    pub(crate) async fn write(&self, stream: &mut SendStream, mut chunks: &mut [Bytes]) -> Result<(), WriteError> {
        let _waits = self.waits();
        while !chunks.is_empty() {
            let written = stream.write_chunks(chunks).await?;
            self.took();
            chunks = chunks.get_mut(written.chunks..).unwrap_or_default();
        }
        Ok(())
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Looks now and then. What is counted is looks and not time, for this process may have stood still itself.
#[derive(Default)]
pub(crate) struct Looks {
    taken: u64,
    attempts: u32,
}

impl Looks {
    /// Whether the other end takes nothing any more.
    pub(crate) fn is_stuck(&mut self, taking: &Taking) -> bool {
        let taken = taking.taken.load(Ordering::Relaxed);
        let waits = taking.waiting.load(Ordering::Relaxed) > 0;
        self.attempts = if waits && taken == self.taken { self.attempts + 1 } else { 0 };
        self.taken = taken;
        self.attempts >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_nothing_is_found_out_and_who_takes_little_is_not() {
        let (taking, mut looks) = (Taking::default(), Looks::default());
        assert!((0..2 * MOST).all(|_| !looks.is_stuck(&taking)), "nothing waits");
        let waits = taking.waits();
        for _ in 0..3 {
            assert!((1..MOST).all(|_| !looks.is_stuck(&taking)));
            taking.took();
        }
        assert!((0..MOST).all(|_| !looks.is_stuck(&taking)) && looks.is_stuck(&taking));
        drop(waits);
        assert!(!looks.is_stuck(&taking));
    }
}
