//! Systems without memory files that can be sealed: nothing is shared.

use crate::{BlockLocation, FileAddress, Nonce, ShmError};
use std::convert::Infallible;
use std::sync::Arc;

/// This process's memory file; never made here.
pub struct LocalFile(Infallible);

/// Never made here.
#[derive(Clone)]
pub struct ReleaseTable(Infallible);

/// The other process's memory file; never opened here.
pub struct PeerFile(Infallible);

/// Bytes in the other's file; never made here.
pub struct BlockRef(Infallible);

impl LocalFile {
    /// Returns [`ShmError::Unsupported`].
    pub fn create(_limit: usize, _nonce: Nonce) -> Result<Self, ShmError> {
        Err(ShmError::Unsupported)
    }

    /// See the Linux side.
    pub fn address(&self) -> FileAddress {
        match self.0 {}
    }

    /// See the Linux side.
    pub fn ledger(&self) -> ReleaseTable {
        match self.0 {}
    }

    /// See the Linux side.
    pub fn write(&mut self, _theirs: &PeerFile, _parts: &[&[u8]]) -> Option<BlockLocation> {
        match self.0 {}
    }
}

impl PeerFile {
    /// Returns [`ShmError::Unsupported`].
    pub fn open(_address: FileAddress) -> Result<Self, ShmError> {
        Err(ShmError::Unsupported)
    }

    /// See the Linux side.
    pub fn nonce(&self) -> Nonce {
        match self.0 {}
    }

    /// See the Linux side.
    pub fn read(
        self: &Arc<Self>,
        _own: &ReleaseTable,
        _place: BlockLocation,
        _len: usize,
    ) -> Result<BlockRef, ShmError> {
        match self.0 {}
    }
}

impl AsRef<[u8]> for BlockRef {
    fn as_ref(&self) -> &[u8] {
        match self.0 {}
    }
}
