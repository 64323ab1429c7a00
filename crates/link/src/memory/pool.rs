//! Memory for tensors that come over QUIC, and for sums of them, used again: fresh memory costs a page fault for every 4 KiB.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Kept for later, at most, and where memory is short.
const MAX_POOLED: usize = 64 << 20;
const MAX_POOLED_WHEN_SCARCE: usize = 8 << 20;
/// The current limit.
static LIMIT: AtomicUsize = AtomicUsize::new(MAX_POOLED);

/// Whether memory that tensors came in is kept for those that come later, 64 MiB at most, or all but 8 MiB of it given back.
pub fn keep_received_memory(keep: bool) {
    LIMIT.store(if keep { MAX_POOLED } else { MAX_POOLED_WHEN_SCARCE }, Ordering::Relaxed);
}
/// A cache line, and what vector instructions like best.
const ALIGNMENT: usize = 64;

/// Memory that is used again.
#[derive(Clone, Default)]
pub struct BufferPool(Arc<Mutex<Vec<Vec<u8>>>>);

impl BufferPool {
    /// The one of this process: what one connection is done with, another takes.
    pub fn global() -> Self {
        static POOL: LazyLock<BufferPool> = LazyLock::new(BufferPool::default);
        POOL.clone()
    }

    /// Room for `len` bytes. Its content is undefined.
    pub fn get(&self, len: usize) -> Buffer {
        let mut kept = self.0.lock();
        let fits = |memory: &Vec<u8>| memory.len() >= len + ALIGNMENT && memory.len() / 2 <= len + ALIGNMENT;
        // The latest is the likeliest to be in the processor's cache.
        let memory = kept.iter().rposition(fits).map(|at| kept.remove(at));
        drop(kept);
        // Zeros from the system, which it makes page by page as bytes arrive.
        let memory = memory.unwrap_or_else(|| vec![0; len + ALIGNMENT]);
        // Where a system cannot tell, tensors lie less well.
        let start = Some(memory.as_ptr().align_offset(ALIGNMENT)).filter(|start| *start < ALIGNMENT).unwrap_or(0);
        Buffer { memory, start, len, pool: self.clone() }
    }

    fn put(&self, memory: Vec<u8>) {
        let mut kept = self.0.lock();
        kept.push(memory);
        let mut sum: usize = kept.iter().map(Vec::len).sum();
        // The oldest goes: its size may be that of another model.
        while sum > LIMIT.load(Ordering::Relaxed) && !kept.is_empty() {
            sum -= kept.remove(0).len();
        }
    }
}

/// Room for one tensor; goes back to its pool when dropped.
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
    pool: BufferPool,
}

impl Buffer {
    /// The bytes to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }

    /// Goes back to its pool when the last slice of it is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.memory.get(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_aligned() {
        let pool = BufferPool::default();
        let mut buffer = pool.get(1000);
        buffer.bytes_mut().fill(7);
        let bytes = buffer.freeze();
        let at = bytes.as_ptr();
        assert!((at as usize).is_multiple_of(ALIGNMENT));
        let half = bytes.slice(500..);
        drop(bytes);
        assert_ne!(pool.get(1000).as_ref().as_ptr(), at, "half of it is still in use");
        drop(half);
        let again = pool.get(900);
        assert_eq!((again.as_ref().as_ptr(), again.as_ref().len()), (at, 900));
    }

    #[test]
    fn it_keeps_a_bounded_amount() {
        let pool = BufferPool::default();
        let buffers: Vec<Buffer> = (0..3).map(|_| pool.get(MAX_POOLED / 2 - ALIGNMENT)).collect();
        drop(buffers);
        assert_eq!(pool.0.lock().len(), 2);
        drop(pool.get(MAX_POOLED));
        assert!(pool.0.lock().iter().map(Vec::len).sum::<usize>() <= MAX_POOLED);
    }
}
