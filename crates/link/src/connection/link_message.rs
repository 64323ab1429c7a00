//! Messages between the two ends of a connection, below their sessions: about the connection
//! itself.

use serde::{Deserialize, Serialize};
use shm::{FileAddress, Nonce};

/// Not a frame but a message between the two ends.
pub(crate) const LINK_MESSAGE: u32 = 1 << 30;
/// A longer message is refused.
pub(crate) const MAX_BYTES: usize = 1 << 10;

/// One of them, as MessagePack behind its length, which is marked by [`LINK_MESSAGE`].
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum LinkMessage {
    /// Our memory file can be opened there.
    MemoryFile { process: u32, file: u32 },
    /// This is the nonce in your memory file; nothing where it cannot be opened or is not wanted.
    MemoryNonce(Option<Nonce>),
    /// Say [`LinkMessage::Pong`] with the same number.
    Ping(u32),
    /// See [`LinkMessage::Ping`].
    Pong(u32),
    /// At the start of a stream of its own: so many bytes follow. Say when all have come.
    Burst { bytes: u32 },
    /// A burst of that size has come.
    BurstReceived { bytes: u32 },
}

impl LinkMessage {
    pub(crate) fn memory_file(address: FileAddress) -> Self {
        LinkMessage::MemoryFile { process: address.process, file: address.file }
    }

    /// Length and body.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        // A message is a few numbers: writing it into memory cannot fail.
        rmp_serde::encode::write(&mut out, self).ok();
        let len = (out.len() - 4) as u32 | LINK_MESSAGE;
        out[..4].copy_from_slice(&len.to_le_bytes());
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, String> {
        rmp_serde::from_slice(body).map_err(|e| format!("a message that cannot be read: {e}"))
    }
}
