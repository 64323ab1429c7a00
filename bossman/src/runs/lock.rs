//! The lock of a folder in which a run trains: its own, or that of its checkpoints. One process
//! trains there, and others can see which.

use super::files::open;
use crate::BossManError;
use std::fs::{File, Metadata, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Locked by the process that trains in the folder. Holds its process id.
const LOCK: &str = "lock";
/// The most characters of a process id.
const MAX_PID: u64 = 20;
/// Who only asks for the holder has the lock for a moment, too. So a process that wants it tries
/// this often before it believes that another one trains here.
const ATTEMPTS: u32 = 50;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(10);

/// The lock of a folder, held until it is dropped.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _lock: File,
}

impl FolderLock {
    /// Locks a folder. On a disk that has no locks, nothing is locked.
    ///
    /// # Errors
    /// Another process trains in it, or has deleted it, or the lock cannot be written.
    pub(crate) fn take(folder: &Path) -> Result<Self, BossManError> {
        let place = folder.join(LOCK);
        let fault = |e: std::io::Error| BossManError::io(&place, &e);
        check_is_file(&place)?;
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&place)
            .map_err(fault)?;
        let mut attempts = 1;
        while let Err(problem) = lock.try_lock() {
            match problem {
                TryLockError::Error(e) if has_no_locks(&e) => break,
                TryLockError::Error(e) => return Err(fault(e)),
                TryLockError::WouldBlock if attempts < ATTEMPTS => {
                    attempts += 1;
                    std::thread::sleep(BETWEEN_ATTEMPTS);
                }
                TryLockError::WouldBlock => return Err(is_taken(folder, &lock)),
            }
        }
        // A process that prunes runs deletes a folder while it holds its lock.
        let (locked, there) = (lock.metadata().map_err(fault)?, place.symlink_metadata());
        if !there.is_ok_and(|there| is_same_file(&locked, &there)) {
            return Err(BossManError::file(folder, "was deleted a moment ago"));
        }
        lock.set_len(0).map_err(fault)?;
        write!(lock, "{}", std::process::id()).map_err(fault)?;
        Ok(FolderLock { _lock: lock })
    }
}

/// Whether a disk has no locks, as NFS has none without its service.
fn has_no_locks(e: &std::io::Error) -> bool {
    const ENOLCK: i32 = if cfg!(target_os = "linux") { 37 } else { 77 };
    e.kind() == ErrorKind::Unsupported || e.raw_os_error() == Some(ENOLCK)
}

/// Checks that the lock, if it is there, is neither a link nor a pipe, which somebody else may have
/// put into the folder.
fn check_is_file(place: &Path) -> Result<(), BossManError> {
    match place.symlink_metadata() {
        Ok(there) if !there.is_file() => {
            let problem = "is a link or no file, and is neither read nor written; delete it";
            Err(BossManError::file(place, problem))
        }
        _ => Ok(()),
    }
}

fn is_taken(folder: &Path, lock: &File) -> BossManError {
    let holder = match pid(lock) {
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    };
    let problem = format!("{holder} trains in this folder; wait until it has ended");
    BossManError::file(folder, &problem)
}

fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// The process that trains in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Nobody,
    /// Its number, if it is known.
    Process(Option<u32>),
}

/// Finds out whether a process trains in a folder.
///
/// # Errors
/// The lock cannot be read.
pub(super) fn holder(folder: &Path) -> Result<Holder, BossManError> {
    let place = folder.join(LOCK);
    let fault = |e: std::io::Error| BossManError::io(&place, &e);
    check_is_file(&place)?;
    let Some(lock) = open(&place)? else { return Ok(Holder::Nobody) };
    match lock.try_lock_shared() {
        Ok(()) => Ok(Holder::Nobody),
        Err(TryLockError::WouldBlock) => Ok(Holder::Process(pid(&lock))),
        Err(TryLockError::Error(e)) if has_no_locks(&e) => Ok(Holder::Nobody),
        Err(TryLockError::Error(e)) => Err(fault(e)),
    }
}

/// Whether a process trains in a folder.
///
/// # Errors
/// The lock cannot be read.
pub fn is_held(folder: &Path) -> Result<bool, BossManError> {
    Ok(holder(folder)? != Holder::Nobody)
}

/// The time at which the process that trains in a folder began to, by the clock of the folder's
/// disk.
///
/// # Errors
/// The lock cannot be read.
pub(super) fn taken_at(folder: &Path) -> Result<SystemTime, BossManError> {
    let place = folder.join(LOCK);
    let modified = place.metadata().and_then(|of| of.modified());
    modified.map_err(|e| BossManError::io(&place, &e))
}

fn pid(mut lock: &File) -> Option<u32> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.take(MAX_PID).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    #[cfg(target_os = "linux")]
    fn a_disk_without_locks_is_told_from_a_fault() {
        let of = std::io::Error::from_raw_os_error;
        let [no_such_call, no_locks, denied] = [38, 37, 13].map(|code| has_no_locks(&of(code)));
        assert!(no_such_call && no_locks && !denied);
    }

    /// EVENT-8.
    #[test]
    fn the_holder_is_named() {
        let place = tempfile::tempdir().unwrap();
        let me = std::process::id();
        assert_eq!(holder(place.path()).unwrap(), Holder::Nobody);
        let lock = FolderLock::take(place.path()).unwrap();
        assert_eq!(holder(place.path()).unwrap(), Holder::Process(Some(me)));
        let refused = FolderLock::take(place.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {me} trains in this folder")), "{refused}");
        drop(lock);
        assert_eq!(holder(place.path()).unwrap(), Holder::Nobody);
    }

    /// `bossman runs` and `bossman log --follow` look at a folder while a run is started in it.
    #[test]
    fn who_looks_keeps_nobody_out() {
        let place = tempfile::tempdir().unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looks = || {
                while !ended.load(Ordering::Relaxed) {
                    holder(place.path()).unwrap();
                }
            };
            scope.spawn(looks);
            let refused = (0..500).find_map(|_| FolderLock::take(place.path()).err());
            ended.store(true, Ordering::Relaxed);
            assert!(refused.is_none(), "{refused:?}");
        });
    }

    /// Somebody else's folder may lead to a file of this user, which would be emptied.
    #[test]
    fn a_lock_that_is_a_link_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("precious");
        std::fs::write(&file, "kept").unwrap();
        for target in [file.as_path(), Path::new("nowhere"), Path::new("/dev/null")] {
            let folder = tempfile::tempdir().unwrap();
            std::os::unix::fs::symlink(target, folder.path().join(LOCK)).unwrap();
            for refused in [FolderLock::take(folder.path()).err(), holder(folder.path()).err()] {
                let refused = refused.unwrap().to_string();
                assert!(refused.contains("lock: is a link or no file"), "{refused}");
            }
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    }

    /// A run that starts in a folder while it is pruned would lose everything.
    #[test]
    fn a_folder_that_was_deleted_meanwhile_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        std::fs::create_dir(&folder).unwrap();
        let prunes = FolderLock::take(&folder).unwrap();
        let refused = std::thread::scope(|scope| {
            let starts = scope.spawn(|| FolderLock::take(&folder));
            std::fs::remove_dir_all(&folder).unwrap();
            drop(prunes);
            starts.join().unwrap().unwrap_err().to_string()
        });
        // Whether it had opened the lock by then is chance.
        assert!(refused.contains("was deleted") || refused.contains("No such file"), "{refused}");
    }
}
