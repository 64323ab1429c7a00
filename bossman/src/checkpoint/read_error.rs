//! Why a checkpoint cannot be used.

use crate::BossManError;
use thiserror::Error;

/// The reason why a checkpoint cannot be used. Only `Damaged` and `Unfinished` prove that it is of
/// no use.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It has no manifest: it is being written, or was never finished.
    #[error(transparent)]
    Unfinished(BossManError),
    /// A file differs from what was written: in its size, its hash or its form; or the manifest
    /// names it and it is missing.
    #[error(transparent)]
    Damaged(BossManError),
    /// The store or the disk does not give a file, or this program does not know its form. It may
    /// be whole.
    #[error(transparent)]
    Unreadable(BossManError),
}

impl From<ReadError> for BossManError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unfinished(error) | ReadError::Damaged(error) | ReadError::Unreadable(error) => error,
        }
    }
}
