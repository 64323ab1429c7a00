//! Systems without memory files that can be sealed: nothing is shared.

use crate::{Address, Nonce, Place, ShmError};
use std::convert::Infallible;
use std::sync::Arc;

/// This process's memory file; never made here.
pub struct Own(Infallible);

/// Never made here.
#[derive(Clone)]
pub struct Ledger(Infallible);

/// The other process's memory file; never opened here.
pub struct Theirs(Infallible);

/// Bytes in the other's file; never lent here.
pub struct Borrowed(Infallible);

impl Own {
    /// Answers that there is none.
    pub fn create(_limit: usize, _nonce: Nonce) -> Result<Self, ShmError> {
        Err(ShmError::Unsupported)
    }

    /// See the Linux side.
    pub fn address(&self) -> Address {
        match self.0 {}
    }

    /// See the Linux side.
    pub fn ledger(&self) -> Ledger {
        match self.0 {}
    }

    /// See the Linux side.
    pub fn put(&mut self, _theirs: &Theirs, _parts: &[&[u8]]) -> Option<Place> {
        match self.0 {}
    }
}

impl Theirs {
    /// Answers that there is none.
    pub fn open(_address: Address) -> Result<Self, ShmError> {
        Err(ShmError::Unsupported)
    }

    /// See the Linux side.
    pub fn nonce(&self) -> Nonce {
        match self.0 {}
    }

    /// See the Linux side.
    pub fn take(self: &Arc<Self>, _own: &Ledger, _place: Place, _len: usize) -> Result<Borrowed, ShmError> {
        match self.0 {}
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        match self.0 {}
    }
}
