//! Memory files of Linux (`memfd_create`), sealed.

use crate::blocks::{Allocation, BlockAllocator, BLOCKS};
use crate::map::Map;
use crate::{BlockLocation, FileAddress, Nonce, ShmError, ALIGNMENT};
use rustix::fs::{self, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The header of a file; the last byte is the version of the layout.
const MARK: u64 = u64::from_le_bytes(*b"BOSSMEM1");
const NONCE: usize = 8;
/// The number of each block's content.
const GENERATIONS: usize = 4096;
/// For each block of the other's file, the number of the latest content that was given back.
const RETURNED: usize = GENERATIONS + 8 * BLOCKS;
/// Blocks begin here.
const START: usize = RETURNED + 8 * BLOCKS;
/// A larger file is not opened: its address range is taken from this process.
const LARGEST: u64 = 64 << 30;
/// No file is larger than this share of the machine's memory.
const SHARE_OF_MEMORY: u64 = 16;

/// This process's memory file: what it writes, the other reads.
pub struct LocalFile {
    file: File,
    /// Shared with what was borrowed, which says in it what it gives back.
    header: Arc<Map>,
    data: Map,
    blocks: BlockAllocator,
}

impl LocalFile {
    /// Makes a file of at most `limit` bytes for contents, and of at most a sixteenth of the
    /// machine's memory. It takes memory only as contents need it, and keeps what it took.
    ///
    /// # Errors
    /// If the system has no memory files, or refuses one.
    pub fn create(limit: usize, nonce: Nonce) -> Result<Self, ShmError> {
        let system = |what| move |e: rustix::io::Errno| ShmError::System { what, source: e.into() };
        let info = rustix::system::sysinfo();
        let memory = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)));
        let limit = limit.min(usize::try_from(memory / SHARE_OF_MEMORY).unwrap_or(limit))
            & !(GENERATIONS - 1);
        let len = START + limit;
        let file = fs::memfd_create("bossman", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = file.map_err(system("making a memory file"))?;
        fs::ftruncate(&file, len as u64).map_err(system("sizing a memory file"))?;
        let file = File::from(file);
        // Reserves the memory of the header now, because a missing page would later end the
        // process.
        reserve(&file, 0, START).map_err(system("taking memory for a memory file"))?;
        let header = Map::new(&file, START, true)?;
        let data = Map::new(&file, len, true)?;
        for (at, bytes) in nonce.chunks_exact(8).enumerate() {
            header.store(NONCE + 8 * at, bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
        }
        header.store(0, MARK);
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fs::fcntl_add_seals(&file, seals).map_err(system("sealing a memory file"))?;
        Ok(LocalFile {
            file,
            header: Arc::new(header),
            data,
            blocks: BlockAllocator::new(START, len),
        })
    }

    /// The address for the other process.
    pub fn address(&self) -> FileAddress {
        use std::os::fd::AsRawFd;
        FileAddress { process: std::process::id(), file: self.file.as_raw_fd().unsigned_abs() }
    }

    /// The table in which contents of the other's file are returned.
    pub fn ledger(&self) -> ReleaseTable {
        ReleaseTable(self.header.clone())
    }

    /// Copies bytes into a free block, one part behind the other, each at a multiple of
    /// [`ALIGNMENT`]. Nothing where too much is with the other process, or the system has no more
    /// memory.
    pub fn write(&mut self, theirs: &PeerFile, parts: &[&[u8]]) -> Option<BlockLocation> {
        let mut len = 0usize;
        for part in parts {
            len = len.checked_next_multiple_of(ALIGNMENT)?.checked_add(part.len())?;
        }
        let room = self
            .blocks
            .allocate(len, |block| theirs.map.load(RETURNED + 8 * block).unwrap_or(0))?;
        let (Allocation::Reused(number) | Allocation::Fresh(number)) = room;
        if let Allocation::Fresh(_) = room {
            let block = *self.blocks.get(number)?;
            if reserve(&self.file, block.offset, block.capacity).is_err() {
                self.blocks.undo_allocate();
                return None;
            }
        }
        let block = self.blocks.fill(number)?;
        let mut at = block.offset;
        for part in parts {
            at = at.next_multiple_of(ALIGNMENT);
            // SAFETY: `allocate` gives a block only once its latest content came back from the
            // other process, and this process never makes slices of its own file.
            if !unsafe { self.data.write(at, part) } {
                return None;
            }
            at += part.len();
        }
        self.header.store(GENERATIONS + 8 * number, block.generation);
        Some(BlockLocation {
            block: u32::try_from(number).ok()?,
            generation: block.generation,
            offset: block.offset as u64,
        })
    }
}

fn reserve(file: &File, offset: usize, len: usize) -> Result<(), rustix::io::Errno> {
    loop {
        match fs::fallocate(file, FallocateFlags::empty(), offset as u64, len as u64) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result,
        }
    }
}

/// The part of [`LocalFile`] in which contents of the other's file are given back.
#[derive(Clone)]
pub struct ReleaseTable(Arc<Map>);

/// The other process's memory file.
pub struct PeerFile {
    map: Map,
    nonce: Nonce,
    /// The latest content taken of each block. None is taken twice, because it is given back once.
    taken: Vec<AtomicU64>,
}

impl PeerFile {
    /// Opens it, for reading only.
    ///
    /// # Errors
    /// If the file does not exist on this machine, or is not sealed like a [`LocalFile`].
    pub fn open(address: FileAddress) -> Result<Self, ShmError> {
        let system = |what| move |e: rustix::io::Errno| ShmError::System { what, source: e.into() };
        let path = format!("/proc/{}/fd/{}", address.process, address.file);
        // Whatever else may be there, a pipe or a terminal, must not make this process wait or take
        // it over.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = fs::open(path, flags, Mode::empty()).map_err(system("opening shared memory"))?;
        let seals =
            fs::fcntl_get_seals(&file).map_err(|_| ShmError::NotAMemoryFile("it has no seals"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE) {
            return Err(ShmError::NotAMemoryFile("it is not sealed"));
        }
        let len = fs::fstat(&file).map_err(system("sizing shared memory"))?.st_size;
        let len = u64::try_from(len).ok().filter(|len| (START as u64..=LARGEST).contains(len));
        let len = len
            .and_then(|len| usize::try_from(len).ok())
            .ok_or(ShmError::NotAMemoryFile("its size"))?;
        let map = Map::new(&File::from(file), len, false)?;
        if map.load(0) != Some(MARK) {
            return Err(ShmError::NotAMemoryFile("it begins otherwise"));
        }
        let mut nonce = [0; 32];
        for (at, bytes) in nonce.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&map.load(NONCE + 8 * at).unwrap_or(0).to_le_bytes());
        }
        Ok(PeerFile { map, nonce, taken: (0..BLOCKS).map(|_| AtomicU64::new(0)).collect() })
    }

    /// The nonce that proves that this process has read it.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Borrows the `len` bytes of content at `place`, which the other process has announced.
    ///
    /// # Errors
    /// If the place is outside the file, its block has another content, or this content
    /// was taken before.
    pub fn read(
        self: &Arc<Self>,
        own: &ReleaseTable,
        place: BlockLocation,
        len: usize,
    ) -> Result<BlockRef, ShmError> {
        let block = usize::try_from(place.block).ok().filter(|block| *block < BLOCKS);
        let block = block.ok_or(ShmError::Location("no such block"))?;
        let offset = usize::try_from(place.offset).map_err(|_| ShmError::Location("its offset"))?;
        let end = offset.checked_add(len).ok_or(ShmError::Location("its length"))?;
        if offset < START || !offset.is_multiple_of(ALIGNMENT) || end > self.map.len() {
            return Err(ShmError::Location("outside the file"));
        }
        if self.map.load(GENERATIONS + 8 * block) != Some(place.generation) {
            return Err(ShmError::Location("another generation is there"));
        }
        let taken =
            self.taken.get(block).map(|taken| taken.fetch_max(place.generation, Ordering::Relaxed));
        if taken.is_none_or(|taken| taken >= place.generation) {
            return Err(ShmError::Location("a generation that was taken before"));
        }
        Ok(BlockRef {
            map: self.clone(),
            own: own.0.clone(),
            block,
            generation: place.generation,
            offset,
            len,
        })
    }
}

/// A content of the other's file. Dropping it gives its block back.
pub struct BlockRef {
    map: Arc<PeerFile>,
    own: Arc<Map>,
    block: usize,
    generation: u64,
    offset: usize,
    len: usize,
}

impl AsRef<[u8]> for BlockRef {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the other process writes to a block only once its content was given back, which
        // `drop` does (see the argument in lib.rs).
        unsafe { self.map.map.bytes(self.offset, self.len) }.unwrap_or(&[])
    }
}

impl Drop for BlockRef {
    fn drop(&mut self) {
        self.own.store(RETURNED + 8 * self.block, self.generation);
    }
}
