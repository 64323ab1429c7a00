//! Errors of data.

use std::io::ErrorKind;
use std::path::Path;
use thiserror::Error;

/// A data error: names the file, the problem and the remedy.
#[derive(Debug, Error)]
pub enum DataError {
    /// A file cannot be read, or does not hold the expected data.
    #[error("{path}: {problem}")]
    File {
        /// The file's path.
        path: String,
        /// The problem with it.
        problem: String,
    },
    /// A request for something that does not exist.
    #[error("{0}")]
    Usage(String),
    /// libtorch refused a tensor.
    #[error(transparent)]
    Tensor(#[from] tensor::TensorError),
}

impl DataError {
    /// Makes an error for this file.
    pub fn file(path: &Path, problem: impl ToString) -> Self {
        DataError::File { path: path.display().to_string(), problem: problem.to_string() }
    }

    /// Makes an error from an I/O error, with a hint that may help.
    pub fn io(path: &Path, e: &std::io::Error) -> Self {
        let help = match e.kind() {
            ErrorKind::PermissionDenied => "; give this user the permission, or name another place",
            ErrorKind::IsADirectory => "; name a file",
            ErrorKind::AlreadyExists => "; a file is in its place, name another",
            ErrorKind::NotADirectory => "; a part of this path is a file, not a folder",
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "; make room, or name another place"
            }
            ErrorKind::ReadOnlyFilesystem => "; name another place",
            _ => "",
        };
        Self::file(path, format!("{e}{help}"))
    }
}
