//! Files of this machine: whether a file exists, repeated attempts to read, and flushing to the
//! disk.

use std::fs::{File, Metadata};
use std::future::Future;
use std::io::{ErrorKind, Result};
use std::path::Path;
use std::time::Duration;

/// The waits before each further attempt to read. A disk or a network mount may recover in that
/// time.
pub(crate) const WAITS: &[Duration] =
    &[Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(800)];

/// Repeats `attempt` after each wait until it succeeds. The error is that of the last attempt.
pub(crate) async fn retry<T, E, F>(
    waits: &[Duration],
    mut attempt: impl FnMut() -> F,
) -> std::result::Result<T, E>
where
    F: Future<Output = std::result::Result<T, E>>,
{
    for wait in waits {
        if let Ok(done) = attempt().await {
            return Ok(done);
        }
        tokio::time::sleep(*wait).await;
    }
    attempt().await
}

/// As [`retry`], on a thread that may block.
pub(crate) fn retry_blocking<T>(
    waits: &[Duration],
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    for wait in waits {
        if let Ok(done) = attempt() {
            return Ok(done);
        }
        std::thread::sleep(*wait);
    }
    attempt()
}

/// The metadata of a file or folder. `None` if the system finds none. Any other failure is an
/// error.
pub(crate) fn metadata(path: &Path) -> Result<Option<Metadata>> {
    match std::fs::metadata(path) {
        Ok(there) => Ok(Some(there)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether a file has this path.
pub(crate) fn is_file(path: &Path) -> Result<bool> {
    Ok(metadata(path)?.is_some_and(|there| there.is_file()))
}

/// Moves a file to its final name, so that it survives a loss of power. Replaces an older file.
pub(crate) fn rename_flushed(from: &Path, to: &Path) -> Result<()> {
    // Unix flushes files that are open for reading. Other systems do not.
    flush(&File::options().read(true).write(cfg!(not(unix))).open(from)?)?;
    std::fs::rename(from, to)?;
    flush_folder_of(to)
}

/// Flushes a file to the disk.
pub(crate) fn flush(file: &File) -> Result<()> {
    match file.sync_all() {
        // Pipes, devices and some network mounts cannot be flushed.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        flushed => flushed,
    }
}

/// Flushes the names in the folder of a file. Without that, a loss of power can undo a rename.
pub(crate) fn flush_folder_of(path: &Path) -> Result<()> {
    match cfg!(unix) {
        true => flush(&File::open(folder_of(path))?),
        // Other systems cannot open a folder for that.
        false => Ok(()),
    }
}

/// The folder that a file is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_attempt_is_repeated_until_it_succeeds_or_waits_end() {
        let waits = [Duration::ZERO; 2];
        for (succeeds_at, expected) in [(1, Ok(1)), (3, Ok(3)), (4, Err(3))] {
            let mut attempts = 0;
            let found = retry(&waits, || {
                attempts += 1;
                let found = if attempts == succeeds_at { Ok(attempts) } else { Err(attempts) };
                std::future::ready(found)
            });
            assert_eq!(found.await, expected);
        }
    }

    #[test]
    fn only_what_the_system_does_not_find_is_missing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.txt");
        assert!(!is_file(&path).unwrap());
        std::fs::write(&path, "x").unwrap();
        assert!(is_file(&path).unwrap());
        assert!(!is_file(place.path()).unwrap());
        assert!(!is_file(&path.join("below a file")).unwrap());
        #[cfg(unix)]
        {
            let circle = place.path().join("circle");
            std::os::unix::fs::symlink(&circle, &circle).unwrap();
            is_file(&circle).unwrap_err();
        }
    }

    #[test]
    fn a_moved_file_replaces_what_was_there() {
        let place = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| place.path().join(name));
        std::fs::write(&from, "new").unwrap();
        std::fs::write(&to, "old").unwrap();
        rename_flushed(&from, &to).unwrap();
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "new");
        assert!(!from.exists());
    }

    /// A pipe cannot be flushed.
    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_no_file_needs_no_flush() {
        flush(&File::options().write(true).open("/dev/null").unwrap()).unwrap();
    }
}
