//! What can be wrong with data.

use std::io::ErrorKind;
use std::path::Path;
use thiserror::Error;

/// An error of data: which file, what is wrong with it, what to do.
#[derive(Debug, Error)]
pub enum DataError {
    /// A file cannot be read, or does not hold what is wanted.
    #[error("{path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Asked for what there is not.
    #[error("{0}")]
    Usage(String),
    /// libtorch refused a tensor.
    #[error(transparent)]
    Tensor(#[from] tensor::TensorError),
}

impl DataError {
    /// Something is wrong with this file.
    pub fn file(path: &Path, problem: impl ToString) -> Self {
        DataError::File { path: path.display().to_string(), problem: problem.to_string() }
    }

    /// What the system refused to do with a file, and what may help.
    pub fn io(path: &Path, e: &std::io::Error) -> Self {
        let help = match e.kind() {
            ErrorKind::PermissionDenied => "; give this user the permission, or name another place",
            ErrorKind::IsADirectory => "; name a file",
            ErrorKind::AlreadyExists => "; a file is in its place, name another",
            ErrorKind::NotADirectory => "; a part of this path is a file, not a folder",
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room, or name another place",
            ErrorKind::ReadOnlyFilesystem => "; name another place",
            _ => "",
        };
        Self::file(path, format!("{e}{help}"))
    }
}
