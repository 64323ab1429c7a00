//! Memory shared with the process at the other end of a connection. Both ends prove that they are
//! on one machine. `shm` explains how it works and why it is sound.
//!
//! ```text
//! caller -> MemoryFile { address of its file }
//! callee -> MemoryNonce { the nonce in it }, MemoryFile { address of its own file }
//! caller -> MemoryNonce { the nonce in that }
//! ```
//!
//! The nonces are in the files only. A peer that knows one has read the file. An end that has
//! opened the other's file, and has received its own nonce back, sends tensors through memory from
//! then on. If anything fails, tensors continue to travel over QUIC.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use pipeline::TensorMeta;
use serde::{Deserialize, Serialize};
use shm::{BlockLocation, FileAddress, LocalFile, Nonce, PeerFile, ReleaseTable, ALIGNMENT};
use std::sync::Arc;

/// The most bytes on each side for tensors in flight or still in use at the other end.
const LIMIT: usize = 512 << 20;

/// How tensors travel over a worker's connections.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Transport {
    /// Shared memory between processes of one machine, QUIC between machines.
    #[default]
    Auto,
    /// QUIC everywhere.
    Quic,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::Quic => "quic",
        })
    }
}

impl std::str::FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Transport::Auto),
            "quic" => Ok(Transport::Quic),
            _ => Err(format!("unknown transport `{text}`; expected auto or quic")),
        }
    }
}

/// The shared memory of one connection, before, during and after the agreement on it.
#[derive(Default)]
pub(crate) struct SharedMemory {
    state: Mutex<State>,
    /// Has a lock of its own, so that a long copy delays no receiver.
    own: Mutex<Option<LocalFile>>,
}

#[derive(Default)]
struct State {
    nonce: Nonce,
    ledger: Option<ReleaseTable>,
    theirs: Option<Arc<PeerFile>>,
    /// Whether the other end has opened our file.
    seen: bool,
}

impl SharedMemory {
    /// Returns the address of our file, and creates it first if necessary. `None` if that fails.
    pub(crate) fn offer(&self) -> Option<FileAddress> {
        let mut nonce = [0; 32];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut own = self.own.lock();
        if own.is_none() {
            let made = LocalFile::create(LIMIT, nonce).ok()?;
            let mut state = self.state();
            state.nonce = nonce;
            state.ledger = Some(made.ledger());
            *own = Some(made);
        }
        own.as_ref().map(LocalFile::address)
    }

    /// Opens the other end's file once, if ours was offered. Returns the nonce in it.
    pub(crate) fn open_peer(&self, address: FileAddress) -> Option<Nonce> {
        self.state().ledger.as_ref()?;
        let theirs = PeerFile::open(address).ok()?;
        let nonce = theirs.nonce();
        let mut state = self.state();
        if state.theirs.is_some() {
            return None;
        }
        state.theirs = Some(Arc::new(theirs));
        Some(nonce)
    }

    /// Handles the nonce that the other end read in our file.
    pub(crate) fn on_nonce(&self, nonce: &Nonce) {
        let mut state = self.state();
        state.seen = state.ledger.is_some() && state.nonce == *nonce;
    }

    /// Whether this end sends tensors through memory.
    pub(crate) fn is_shared(&self) -> bool {
        let state = self.state();
        state.seen && state.theirs.is_some()
    }

    /// Copies a frame's tensors into memory. Returns `None` if memory is not shared, or too much of
    /// it is in use.
    pub(crate) fn write(&self, tensors: &[Bytes]) -> Option<BlockLocation> {
        let theirs = {
            let state = self.state();
            state.theirs.clone().filter(|_| state.seen)?
        };
        let parts: Vec<&[u8]> = tensors.iter().map(Bytes::as_ref).collect();
        self.own.lock().as_mut()?.write(&theirs, &parts)
    }

    /// Returns a frame's tensors. Their memory is released when the last of them is dropped.
    ///
    /// # Errors
    /// The location is not in the other end's file, or was read before.
    pub(crate) fn read(
        &self,
        place: BlockLocation,
        metas: &[TensorMeta],
    ) -> Result<Vec<Bytes>, String> {
        let (theirs, ledger) = {
            let state = self.state();
            state
                .theirs
                .clone()
                .zip(state.ledger.clone())
                .ok_or("tensors in memory that is not shared")?
        };
        let (parts, len) = layout(metas).ok_or("tensors too large for this machine")?;
        let all = theirs.read(&ledger, place, len).map_err(|e| e.to_string())?;
        let all = Bytes::from_owner(all);
        Ok(parts.into_iter().map(|(from, to)| all.slice(from..to)).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Computes the start and end of each tensor, and the end of all. Each starts at a multiple of
/// [`ALIGNMENT`], as in `shm`.
fn layout(metas: &[TensorMeta]) -> Option<(Vec<(usize, usize)>, usize)> {
    let mut end = 0usize;
    let mut parts = Vec::with_capacity(metas.len());
    for meta in metas {
        let from = end.checked_next_multiple_of(ALIGNMENT)?;
        end = from.checked_add(usize::try_from(meta.byte_len()?).ok()?)?;
        parts.push((from, end));
    }
    Some((parts, end))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use layerspec::DType;

    /// FRAME-10.
    #[test]
    fn memory_is_used_only_once_both_ends_have_proven_that_they_read_it() {
        let (caller, callee) = (SharedMemory::default(), SharedMemory::default());
        let tensors = [Bytes::from_static(&[1, 2, 3])];
        let metas = [TensorMeta { dtype: DType::UInt8, shape: vec![3] }];
        let anywhere = BlockLocation { block: 0, generation: 1, offset: 12_288 };
        assert!(caller.read(anywhere, &metas).is_err(), "nothing is shared yet");

        let offered = caller.offer().unwrap();
        assert_eq!(callee.open_peer(offered), None, "an end that offers nothing opens nothing");
        let answered = callee.offer().unwrap();
        let nonce = callee.open_peer(offered).unwrap();
        assert_eq!(callee.open_peer(offered), None, "once is enough");
        assert_eq!(caller.write(&tensors), None);
        let proof = caller.open_peer(answered).unwrap();
        caller.on_nonce(&[0; 32]);
        caller.on_nonce(&proof);
        assert!(
            !caller.is_shared() && caller.write(&tensors).is_none(),
            "these are not the nonce in its file"
        );
        caller.on_nonce(&nonce);
        assert!(caller.is_shared() && !callee.is_shared());

        let place = caller.write(&tensors).unwrap();
        assert_eq!(callee.read(place, &metas).unwrap(), tensors);
        assert!(callee.read(place, &metas).is_err(), "taken before");
        let larger = [TensorMeta { dtype: DType::Float64, shape: vec![1 << 40] }];
        assert!(
            callee.read(caller.write(&tensors).unwrap(), &larger).is_err(),
            "more than the file has"
        );
    }
}
