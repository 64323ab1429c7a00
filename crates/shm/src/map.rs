//! A file mapped into memory. All `unsafe` of this crate is here.

use crate::copy::copy;
use crate::ShmError;
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicU64, Ordering};

/// A shared mapping of the first `len` bytes of a file that cannot shrink.
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to no thread; what may be read and written is said at each function.
unsafe impl Send for Map {}
// SAFETY: as above. Shared references only load atomically, or read what the contract of `bytes`
// lets them.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file that is sealed against shrinking, or is about to be by the caller.
    pub(crate) fn new(file: &File, len: usize, writable: bool) -> Result<Self, ShmError> {
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the system chooses an address range that nothing else uses.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) };
        let start = start
            .map_err(|e| ShmError::System { what: "mapping shared memory", source: e.into() })?;
        let start =
            NonNull::new(start.cast()).ok_or(ShmError::NotAMemoryFile("mapped at address 0"))?;
        Ok(Map { start, len, writable })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Reads the number at an offset; what its writer wrote before it can be read afterwards.
    pub(crate) fn load(&self, offset: usize) -> Option<u64> {
        // A relaxed load is a plain one to the processor, as read-only memory asks; the fence
        // orders it.
        let number = self.number(offset)?.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        Some(number)
    }

    /// Writes the number at an offset, after everything that was read and written before.
    pub(crate) fn store(&self, offset: usize, number: u64) {
        if self.writable {
            if let Some(place) = self.number(offset) {
                place.store(number, Ordering::Release);
            }
        }
    }

    fn number(&self, offset: usize) -> Option<&AtomicU64> {
        let fits =
            offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.len);
        // SAFETY: inside the mapping, aligned (a mapping starts at a page), and every process
        // accesses these bytes only as atomic numbers: blocks begin behind the last of them.
        fits.then(|| unsafe { self.start.add(offset).cast::<AtomicU64>().as_ref() })
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// Nobody in this process holds a slice of that part of the file, and none reads it in another.
    pub(crate) unsafe fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let fits =
            self.writable && offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len);
        if fits {
            // SAFETY: inside the writable mapping, which is borrowed exclusively; nobody else looks
            // at that part by the contract.
            let to = unsafe {
                std::slice::from_raw_parts_mut(self.start.add(offset).as_ptr(), bytes.len())
            };
            copy(to, bytes);
        }
        fits
    }

    /// A part of the mapping.
    ///
    /// # Safety
    /// Nobody writes to that part of the file, in any process, as long as the slice is used.
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: inside the mapping, which lives as long as `self`; not written by the contract.
        fits.then(|| unsafe { std::slice::from_raw_parts(self.start.add(offset).as_ptr(), len) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this range was mapped in `new`, and every slice of it borrowed `self`.
        unsafe { munmap(self.start.as_ptr().cast(), self.len) }.ok();
    }
}
