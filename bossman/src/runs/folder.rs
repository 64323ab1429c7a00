//! The folder of a run: its name, its lock and the link to the newest.

use super::name::{RunName, LATEST};
use crate::BossManError;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The run as carried out.
const RUN: &str = "run.yaml";
/// Locked by the process that trains in the folder. Holds its process id.
const LOCK: &str = "lock";
/// The most characters of a process id.
const MAX_PID: u64 = 20;

/// Where a run's folder goes.
#[derive(Clone, Debug)]
pub struct RunFolderSettings {
    /// The folder of run folders.
    pub runs: PathBuf,
    /// The name that the user gave. A folder of that name must not exist.
    pub name: Option<RunName>,
    /// The name if none was given. If its folder exists, the next number follows it.
    pub derived: RunName,
    /// The folder to resume in, if the user named it.
    pub resume_in: Option<PathBuf>,
}

/// A run's folder, locked by this process.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
    /// Whether this process made it.
    is_new: bool,
}

impl RunFolder {
    /// Makes the folder of a new run, and locks it.
    ///
    /// # Errors
    /// It cannot be made, or a folder of the given name exists.
    pub fn create(settings: &RunFolderSettings) -> Result<Self, BossManError> {
        let RunFolderSettings { runs, name, derived, .. } = settings;
        std::fs::create_dir_all(runs).map_err(|e| BossManError::io(runs, &e))?;
        let mut number = match name {
            Some(_) => 1,
            None => newest_number(runs, derived)?.map_or(1, |newest| newest + 1),
        };
        loop {
            let path = runs.join(name.as_ref().unwrap_or(derived).numbered(number).to_string());
            match std::fs::create_dir(&path) {
                Ok(()) => return Self::lock(path, true),
                Err(e) if e.kind() == ErrorKind::AlreadyExists && name.is_some() => {
                    let problem = "is the folder of another run; go on in it with --resume, or \
                                   choose another --name";
                    return Err(BossManError::file(&path, problem));
                }
                // Another process was faster.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(BossManError::io(&path, &e)),
            }
        }
    }

    /// Locks the newest folder of the name, to go on in it. `None` if there is none.
    ///
    /// # Errors
    /// The folder cannot be read, or another process trains in it.
    pub fn newest(settings: &RunFolderSettings) -> Result<Option<Self>, BossManError> {
        if let Some(path) = &settings.resume_in {
            return Self::lock(resolve_latest(path), false).map(Some);
        }
        let RunFolderSettings { runs, name, derived, .. } = settings;
        let path = match name {
            Some(name) => Some(runs.join(name.to_string())).filter(|path| path.is_dir()),
            None => {
                let newest = newest_number(runs, derived)?;
                newest.map(|number| runs.join(derived.numbered(number).to_string()))
            }
        };
        path.map(|path| Self::lock(path, false)).transpose()
    }

    fn lock(path: PathBuf, is_new: bool) -> Result<Self, BossManError> {
        let place = path.join(LOCK);
        let fault = |e: std::io::Error| BossManError::io(&place, &e);
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&place)
            .map_err(fault)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(e)) => return Err(fault(e)),
            Err(TryLockError::WouldBlock) => {
                let holder = match pid(&lock) {
                    Some(pid) => format!("process {pid}"),
                    None => "another process".into(),
                };
                let problem = format!("{holder} trains in this folder; wait until it has ended");
                return Err(BossManError::file(&path, problem));
            }
        }
        lock.set_len(0).map_err(fault)?;
        write!(lock, "{}", std::process::id()).map_err(fault)?;
        Ok(RunFolder { path, _lock: lock, is_new })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Deletes the folder of a run that did not begin.
    pub(crate) fn discard(&self) {
        if self.is_new {
            std::fs::remove_dir_all(&self.path).ok();
            // It is empty if this would have been the first run.
            self.path.parent().map(std::fs::remove_dir);
        }
    }

    /// Puts a link into it to a file that the user put elsewhere.
    ///
    /// # Errors
    /// The link cannot be made.
    pub(crate) fn link_to(&self, name: &str, file: &Path) -> Result<(), BossManError> {
        let target = std::path::absolute(file).map_err(|e| BossManError::io(file, &e))?;
        replace_link(&self.file(name), &target)
    }

    /// Makes `latest` beside it a link to it.
    ///
    /// # Errors
    /// The link cannot be made.
    pub(crate) fn make_latest(&self) -> Result<(), BossManError> {
        let (Some(runs), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Ok(());
        };
        replace_link(&runs.join(LATEST), Path::new(name))
    }
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
    let lock = match File::open(&place) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Holder::Nobody),
        lock => lock.map_err(fault)?,
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(Holder::Nobody),
        Err(TryLockError::WouldBlock) => Ok(Holder::Process(pid(&lock))),
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

/// Whether a path is the folder of a run.
pub fn is_run_folder(path: &Path) -> bool {
    path.join(RUN).is_file()
}

/// The folder to which `latest` leads now. A run that begins later changes the link, and one
/// command must read one folder.
pub fn resolve_latest(path: &Path) -> PathBuf {
    match std::fs::read_link(path) {
        Ok(target) => path.parent().unwrap_or_else(|| Path::new(".")).join(target),
        Err(_) => path.to_path_buf(),
    }
}

/// The highest number of a folder of this name.
fn newest_number(runs: &Path, name: &RunName) -> Result<Option<u64>, BossManError> {
    let entries = match std::fs::read_dir(runs) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(|e| BossManError::io(runs, &e))?,
    };
    let mut newest = None;
    for entry in entries {
        let entry = entry.map_err(|e| BossManError::io(runs, &e))?;
        newest = newest.max(entry.file_name().to_str().and_then(|folder| name.number_of(folder)));
    }
    Ok(newest)
}

fn pid(mut lock: &File) -> Option<u32> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.take(MAX_PID).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Replaces a link in one step, so that it always leads somewhere. Never replaces a file.
fn replace_link(link: &Path, target: &Path) -> Result<(), BossManError> {
    if link.symlink_metadata().is_ok_and(|there| !there.is_symlink()) {
        let problem = "is no link, so it is not replaced by one; move it away";
        return Err(BossManError::file(link, problem));
    }
    let fault = |e: std::io::Error| BossManError::io(link, &e);
    let draft = link.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::remove_file(&draft).ok();
    std::os::unix::fs::symlink(target, &draft).map_err(fault)?;
    std::fs::rename(&draft, link).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(runs: &Path, name: Option<&str>) -> RunFolderSettings {
        RunFolderSettings {
            runs: runs.to_path_buf(),
            name: name.and_then(RunName::parse),
            derived: RunName::parse("digits").unwrap(),
            resume_in: None,
        }
    }

    fn name_of(folder: &RunFolder) -> &str {
        folder.path().file_name().unwrap().to_str().unwrap()
    }

    #[test]
    fn a_new_run_never_enters_a_folder() {
        let place = tempfile::tempdir().unwrap();
        let runs = place.path().join("runs");
        assert!(RunFolder::newest(&settings(&runs, None)).unwrap().is_none());
        let first = RunFolder::create(&settings(&runs, None)).unwrap();
        let second = RunFolder::create(&settings(&runs, None)).unwrap();
        assert_eq!((name_of(&first), name_of(&second)), ("digits", "digits-2"));
        // The number that follows is the highest, also where lower ones were deleted.
        std::fs::remove_dir_all(first.path()).unwrap();
        let third = RunFolder::create(&settings(&runs, None)).unwrap();
        assert_eq!(name_of(&third), "digits-3");
        RunFolder::create(&settings(&runs, Some("mine"))).unwrap();
        let refused = RunFolder::create(&settings(&runs, Some("mine"))).unwrap_err().to_string();
        assert!(refused.contains("mine: is the folder of another run"), "{refused}");
    }

    #[test]
    fn one_process_trains_in_a_folder() {
        let place = tempfile::tempdir().unwrap();
        let runs = settings(place.path(), None);
        let folder = RunFolder::create(&runs).unwrap();
        let refused = RunFolder::newest(&runs).unwrap_err().to_string();
        let expected = format!("process {} trains in this folder", std::process::id());
        assert!(refused.contains(&expected), "{refused}");
        assert_eq!(holder(folder.path()).unwrap(), Holder::Process(Some(std::process::id())));
        let path = folder.path().to_path_buf();
        drop(folder);
        assert_eq!(holder(&path).unwrap(), Holder::Nobody);
        let again = RunFolder::newest(&runs).unwrap().unwrap();
        assert_eq!(name_of(&again), "digits");
        // An old folder stays, whatever happens.
        again.discard();
        assert!(place.path().join("digits").is_dir());
    }

    #[test]
    fn a_mistake_leaves_no_folder() {
        let place = tempfile::tempdir().unwrap();
        let runs = place.path().join("runs");
        RunFolder::create(&settings(&runs, None)).unwrap().discard();
        assert!(!runs.exists());
    }

    #[test]
    fn latest_leads_to_the_run_that_began_last() {
        let place = tempfile::tempdir().unwrap();
        let latest = place.path().join(LATEST);
        for name in ["digits", "digits-2"] {
            let folder = RunFolder::create(&settings(place.path(), None)).unwrap();
            folder.make_latest().unwrap();
            assert_eq!(std::fs::read_link(&latest).unwrap(), Path::new(name));
            assert_eq!(resolve_latest(&latest), folder.path());
        }
        std::fs::remove_file(&latest).unwrap();
        std::fs::write(&latest, "a file of the user").unwrap();
        let folder = RunFolder::create(&settings(place.path(), None)).unwrap();
        let refused = folder.make_latest().unwrap_err().to_string();
        assert!(refused.contains("is no link"), "{refused}");
    }
}
