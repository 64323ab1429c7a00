//! Memory that two processes of one machine share: one writes, the other reads.
//!
//! Each of the two processes makes a memory file ([`LocalFile`]) and opens the other's as
//! [`PeerFile`]. A process only writes to its own file. The file has these parts:
//!
//! ```text
//! | mark, nonce | generation of each block | contents of the other file given back | blocks |
//! ```
//!
//! [`LocalFile::write`] copies bytes into a free block and gives it a content number. It returns a
//! [`BlockLocation`], which the caller sends to the other process. There [`PeerFile::read`] returns
//! the bytes without a copy. Dropping them writes the content's number to the reader's own file. So
//! the writer finds that the block is free again, without a message or a system call.
//!
//! A file is found by the process's number and the file's number in it
//! (`/proc/<process>/fd/<file>`). A nonce in the file proves that a peer shares the machine: only a
//! process that has read the file knows it.
//!
//! # Why this is sound
//!
//! - No length can be wrong. A file is sealed against shrinking and growing before any other
//!   process learns of it. The reader checks the seal and the size before it maps the file, and
//!   every offset and length before use. So no access leaves the mapping and none hits a hole
//!   behind the end of the file. The pages of a block are taken from the system before the block is
//!   first written.
//! - Nothing is written while it is borrowed. The writer reuses a block only when the reader's file
//!   states that its latest content was returned. The reader states this once the last borrow has
//!   ended. Both sides use release and acquire on these numbers. A reader takes a content only when
//!   the block carries its number, and only once.
//! - The reader maps the other's file readable only, and the file is sealed against new writable
//!   mappings (`F_SEAL_FUTURE_WRITE`). So only the mapping of the process that made it can write:
//!   one process, one object, one lock ([`LocalFile::write`] takes `&mut self`).
//! - Numbers shared by both sides are only accessed atomically; those in the other's file only by
//!   loads.
//! - The remaining risk is a process that breaks this protocol on purpose and writes a block while
//!   the reader has it. It has shown that it may open this process's files under `/proc`, for which
//!   the system asks the rights of a debugger: it could change any other byte of this process as
//!   well. Like a debugger, it is outside what a program can be sound against. A block holds only
//!   elements of tensors, whose values may be anything. Nobody reads lengths, offsets or decisions
//!   from a block.
//!
//! On systems other than Linux every attempt answers [`ShmError::Unsupported`].

mod blocks;
mod copy;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod map;

#[cfg(not(target_os = "linux"))]
pub use elsewhere::{BlockRef, LocalFile, PeerFile, ReleaseTable};
#[cfg(target_os = "linux")]
pub use linux::{BlockRef, LocalFile, PeerFile, ReleaseTable};

pub use copy::copy;
use thiserror::Error;

/// Blocks start at multiples of this, and so may tensors in them.
pub const ALIGNMENT: usize = 64;

/// Proves that somebody has read a file.
pub type Nonce = [u8; 32];

/// The address of a memory file on its machine.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FileAddress {
    /// The process that made it.
    pub process: u32,
    /// The file's number in that process.
    pub file: u32,
}

/// The place of a content in a memory file.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BlockLocation {
    /// The block.
    pub block: u32,
    /// The content's number. A block never has the same number twice.
    pub generation: u64,
    /// The offset of the block in the file.
    pub offset: u64,
}

/// Why memory is not shared.
#[derive(Debug, Error)]
pub enum ShmError {
    /// Not on this system.
    #[error("shared memory is only used on Linux")]
    Unsupported,
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// The opened file is no memory file.
    #[error("not a memory file of BossMan: {0}")]
    NotAMemoryFile(&'static str),
    /// An invalid location.
    #[error("an invalid location in shared memory: {0}")]
    Location(&'static str),
}
