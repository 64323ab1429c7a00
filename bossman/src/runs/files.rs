//! Writes small files of a run's folder whole. A link of that name is replaced, not followed.

use crate::data::atomic_file;
use crate::BossManError;
use std::io::Write;
use std::path::Path;

/// Writes a file, or replaces it.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), BossManError> {
    let mut file = atomic_file::create(path)?;
    file.write_all(bytes).map_err(|e| BossManError::io(path, &e))?;
    atomic_file::commit(path, file)
}
