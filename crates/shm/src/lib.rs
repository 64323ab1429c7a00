//! Memory that two processes of one machine share: one writes, the other reads.
//!
//! Each of the two processes makes an [`LocalFile`] memory file and opens the other's as [`PeerFile`]. A process
//! only ever writes into its own file. In it lie
//!
//! ```text
//! | mark, nonce | for each block the number of its generation | numbers of the other's contents given back | blocks |
//! ```
//!
//! [`LocalFile::write`] copies bytes into a free block and gives it a content number; what it returns, a
//! [`BlockLocation`], is told to the other process by whatever way the two talk. There [`PeerFile::read`] gives the
//! bytes without a copy. When they are dropped, the content's number is written into the reader's own
//! file, where the writer finds that the block is free again: no message, no system call.
//!
//! A file is found by the process's number and the file's number in it (`/proc/<process>/fd/<file>`). That
//! somebody who names such a file really shares the machine is proven by a nonce inside: who can say it has
//! read the file.
//!
//! # Why this is sound
//!
//! - No length can be wrong: a file is sealed against shrinking and growing before anybody hears of it, the
//!   reader checks the seal and the size before it maps, and every offset and length before use. So no
//!   access leaves the mapping and none hits a hole behind the end of the file. The pages of a block are
//!   taken from the system before the block is first written.
//! - Nothing is written while it is borrowed: the writer reuses a block only when the reader's file says
//!   that its latest content was given back, which the reader says once the last borrow has ended. Both
//!   sides use release and acquire on these numbers. A reader takes a content only when the block carries
//!   its number, and only once.
//! - The reader maps the other's file readable only, and the file is sealed against new writable mappings
//!   (`F_SEAL_FUTURE_WRITE`), so only the mapping of the process that made it can write: one process, one
//!   object, one lock ([`LocalFile::write`] takes `&mut self`).
//! - Numbers shared by both sides are only accessed atomically; those in the other's file only by loads.
//! - What is left is a process that breaks this protocol on purpose and writes a block that it has lent.
//!   It has shown that it may open this process's files under `/proc`, for which the system asks the rights
//!   of a debugger: it could change any other byte of this process as well. Like a debugger, it is outside
//!   what a program can be sound against. What it writes are elements of tensors, which are numbers of any
//!   value; nobody reads lengths, offsets or decisions from a block.
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
    /// The content's number; a block never has the same twice.
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
    /// The system said no.
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
    /// An invalid place.
    #[error("a place in shared memory that is none: {0}")]
    Location(&'static str),
}
