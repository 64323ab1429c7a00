//! Messages between the two ends of a connection about the connection itself. Sessions never see
//! them.

use serde::{Deserialize, Serialize};
use shm::{FileAddress, Nonce};

/// The bit that marks a length as that of a link message.
pub(crate) const LINK_MESSAGE: u32 = 1 << 30;
/// The largest message. A longer one breaks the protocol.
pub(crate) const MAX_BYTES: usize = 1 << 10;

/// A message about the connection. It is sent as MessagePack after its length, which is marked by
/// [`LINK_MESSAGE`].
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum LinkMessage {
    /// The sender's shared-memory file can be opened at this address.
    MemoryFile { process: u32, file: u32 },
    /// The nonce in the receiver's memory file. `None` if the sender cannot open the file, or does
    /// not want to.
    MemoryNonce(Option<Nonce>),
    /// Asks for [`LinkMessage::Pong`] with the same number.
    Ping(u32),
    /// Answers [`LinkMessage::Ping`].
    Pong(u32),
    /// Starts a stream of its own, on which `bytes` bytes follow. Asks for
    /// [`LinkMessage::BurstReceived`] when all have arrived.
    Burst { bytes: u32 },
    /// Answers a [`LinkMessage::Burst`] of that size.
    BurstReceived { bytes: u32 },
}

impl LinkMessage {
    pub(crate) fn memory_file(address: FileAddress) -> Self {
        LinkMessage::MemoryFile { process: address.process, file: address.file }
    }

    /// Encodes the length and the body.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        // A message is a few numbers. Writing them into memory cannot fail.
        rmp_serde::encode::write(&mut out, self).ok();
        let len = (out.len() - 4) as u32 | LINK_MESSAGE;
        out[..4].copy_from_slice(&len.to_le_bytes());
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, String> {
        rmp_serde::from_slice(body).map_err(|e| format!("a link message that cannot be read: {e}"))
    }
}
