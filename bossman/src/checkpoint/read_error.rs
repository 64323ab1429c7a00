//! Errors of reading a checkpoint.

use crate::BossManError;
use thiserror::Error;

/// The reason why a checkpoint cannot be used. Only `Damaged` and `Unfinished` prove that it is
/// useless.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It has no manifest: it is being written, or was never finished.
    #[error(transparent)]
    Unfinished(BossManError),
    /// A file differs from the written one in its size, hash or format. Or the manifest names it
    /// and it is missing.
    #[error(transparent)]
    Damaged(BossManError),
    /// A file cannot be read, or this program does not know its format. The checkpoint may be
    /// whole.
    #[error(transparent)]
    Unreadable(BossManError),
}

impl From<ReadError> for BossManError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unfinished(error)
            | ReadError::Damaged(error)
            | ReadError::Unreadable(error) => error,
        }
    }
}
