//! Reads and writes files of a run's folder, which may be somebody else's: nothing waits for a pipe
//! or reads a device, and a link is replaced, not written through.

use crate::data::{atomic_file, disk};
use crate::BossManError;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Opens a file to read. `None` if it is not there.
///
/// # Errors
/// It is a folder, a device or a pipe, or cannot be read.
pub(super) fn open(path: &Path) -> Result<Option<File>, BossManError> {
    let fault = |e: std::io::Error| BossManError::io(path, &e);
    if disk::metadata(path).map_err(fault)?.is_some_and(|there| !there.is_file()) {
        return Err(BossManError::file(path, "is not a file; delete it"));
    }
    match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        file => file.map(Some).map_err(fault),
    }
}

/// Writes a file, or replaces it.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), BossManError> {
    let mut file = atomic_file::create(path)?;
    file.write_all(bytes).map_err(|e| BossManError::io(path, &e))?;
    atomic_file::commit(path, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe would wait for somebody who writes, and a device may have no end.
    #[test]
    fn what_is_no_file_is_not_opened() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("events.jsonl");
        assert!(open(&path).unwrap().is_none());
        std::fs::write(&path, "").unwrap();
        assert!(open(&path).unwrap().is_some());
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        for path in [path.as_path(), Path::new("/dev/zero"), place.path()] {
            let refused = open(path).unwrap_err().to_string();
            assert!(refused.ends_with(": is not a file; delete it"), "{refused}");
        }
    }
}
