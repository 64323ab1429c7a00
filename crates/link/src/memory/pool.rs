//! A pool of memory for received tensors and for sums of them. Fresh memory would cost a page fault
//! for every 4 KiB.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The most bytes that the pool keeps, usually and if memory is scarce.
const MAX_POOLED: usize = 64 << 20;
const MAX_POOLED_WHEN_SCARCE: usize = 8 << 20;
/// The current limit.
static LIMIT: AtomicUsize = AtomicUsize::new(MAX_POOLED);

/// The memory that the pool of this process keeps.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PoolSize {
    /// 64 MiB.
    Usual,
    /// 8 MiB, because memory is scarce.
    Small,
}

/// Sets the memory that the pool keeps for later tensors.
pub fn set_pool_size(size: PoolSize) {
    let limit = match size {
        PoolSize::Usual => MAX_POOLED,
        PoolSize::Small => MAX_POOLED_WHEN_SCARCE,
    };
    LIMIT.store(limit, Ordering::Relaxed);
}

/// The alignment of tensors in bytes: a cache line, which vector instructions prefer.
const ALIGNMENT: usize = 64;

/// Buffers that are used again.
#[derive(Clone, Default)]
pub struct BufferPool(Arc<Mutex<Vec<Vec<u8>>>>);

impl BufferPool {
    /// The pool of this process. All connections share it.
    pub fn global() -> Self {
        static POOL: LazyLock<BufferPool> = LazyLock::new(BufferPool::default);
        POOL.clone()
    }

    /// Takes a buffer of `len` bytes. Its content is undefined.
    pub fn get(&self, len: usize) -> Buffer {
        let mut kept = self.0.lock();
        let fits = |memory: &Vec<u8>| {
            memory.len() >= len + ALIGNMENT && memory.len() / 2 <= len + ALIGNMENT
        };
        // The latest buffer is most likely in the processor's cache.
        let memory = kept.iter().rposition(fits).map(|at| kept.remove(at));
        drop(kept);
        // The system fills these zeros in page by page, as bytes arrive.
        let memory = memory.unwrap_or_else(|| vec![0; len + ALIGNMENT]);
        // If the system cannot compute the alignment, tensors are not aligned.
        let start = Some(memory.as_ptr().align_offset(ALIGNMENT))
            .filter(|start| *start < ALIGNMENT)
            .unwrap_or(0);
        Buffer { memory, start, len, pool: self.clone() }
    }

    fn put(&self, memory: Vec<u8>) {
        let mut kept = self.0.lock();
        kept.push(memory);
        let mut sum: usize = kept.iter().map(Vec::len).sum();
        // The oldest buffers are freed first: their sizes may be those of another model.
        while sum > LIMIT.load(Ordering::Relaxed) && !kept.is_empty() {
            sum -= kept.remove(0).len();
        }
    }
}

/// A buffer for one tensor. It returns to its pool when dropped.
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

    /// Makes it immutable. It returns to its pool when the last slice of it is dropped.
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
