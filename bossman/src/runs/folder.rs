//! The folder of a run.

use super::live_boss::remove_port;
use super::lock::{is_held, FolderLock};
use super::name::RunName;
use super::paths::{lead_to, mend_latest, replace_link, resolve_latest};
use crate::BossManError;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

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
    _lock: FolderLock,
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
        let _lock = FolderLock::take(&path)?;
        // It may be that of a process that was killed.
        remove_port(&path);
        Ok(RunFolder { path, _lock, is_new })
    }

    /// Deletes the folder of a run with everything in it, unless a process trains there. Returns
    /// whether it was deleted. `latest` then leads to the newest run that is left.
    ///
    /// # Errors
    /// It cannot be locked or deleted.
    pub fn delete(path: &Path) -> Result<bool, BossManError> {
        if is_held(path)? {
            return Ok(false);
        }
        let folder = Self::lock(path.to_path_buf(), false)?;
        std::fs::remove_dir_all(path).map_err(|e| BossManError::io(path, &e))?;
        drop(folder);
        path.parent().map_or(Ok(()), mend_latest)?;
        Ok(true)
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

    /// The place of a file that an earlier process of the run may have put elsewhere.
    pub(crate) fn place_of(&self, name: &str) -> PathBuf {
        let file = self.file(name);
        std::fs::read_link(&file).unwrap_or(file)
    }

    /// Puts a link into it to a file that the user puts elsewhere. If the run began without that,
    /// its file moves there.
    ///
    /// # Errors
    /// The link cannot be made, or both files are there.
    pub(crate) fn link_to(&self, name: &str, file: &Path) -> Result<(), BossManError> {
        let target = std::path::absolute(file).map_err(|e| BossManError::io(file, &e))?;
        let own = self.file(name);
        if own.is_file() && !own.is_symlink() {
            if target.exists() {
                let problem = format!(
                    "is not replaced by the run's own, which is {}; move one of them away",
                    own.display()
                );
                return Err(BossManError::file(&target, problem));
            }
            move_file(&own, &target).map_err(|e| BossManError::io(&target, &e))?;
        }
        replace_link(&own, &target)
    }

    /// Makes `latest` beside it a link to it.
    ///
    /// # Errors
    /// The link cannot be made.
    pub(crate) fn make_latest(&self) -> Result<(), BossManError> {
        lead_to(&self.path)
    }
}

/// The address of the boss goes before the lock does.
impl Drop for RunFolder {
    fn drop(&mut self) {
        remove_port(&self.path);
    }
}

/// Moves a file, also to another disk.
fn move_file(from: &Path, to: &Path) -> std::io::Result<()> {
    match std::fs::rename(from, to) {
        Err(e) if e.kind() == ErrorKind::CrossesDevices => {
            std::fs::copy(from, to)?;
            std::fs::remove_file(from)
        }
        moved => moved,
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
    fn a_run_goes_on_in_its_folder() {
        let place = tempfile::tempdir().unwrap();
        let runs = settings(place.path(), None);
        drop(RunFolder::create(&runs).unwrap());
        let again = RunFolder::newest(&runs).unwrap().unwrap();
        assert_eq!(name_of(&again), "digits");
        // An old folder stays, whatever happens.
        again.discard();
        assert!(place.path().join("digits").is_dir());
        // While a run lasts, nobody deletes it.
        assert!(!RunFolder::delete(again.path()).unwrap());
        let path = again.path().to_path_buf();
        drop(again);
        assert!(RunFolder::delete(&path).unwrap());
        assert!(RunFolder::newest(&runs).unwrap().is_none());
    }

    #[test]
    fn a_mistake_leaves_no_folder() {
        let place = tempfile::tempdir().unwrap();
        let runs = place.path().join("runs");
        RunFolder::create(&settings(&runs, None)).unwrap().discard();
        assert!(!runs.exists());
    }
}
