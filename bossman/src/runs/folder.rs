//! The folder of a run.

use super::files::write;
use super::live_boss::remove_port;
use super::lock::{is_held, FolderLock};
use super::name::RunName;
use super::owner::check_may_write;
use super::paths::{has_run, is_run_folder, lead_to, mend_latest, replace_link, resolve_latest};
use crate::data::atomic_file::remove_drafts;
use crate::data::bounded_file;
use crate::BossManError;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file with the name under which a run began, without a number.
const NAME: &str = "name";
/// The most bytes of that file.
const MAX_BYTES: u64 = 1024;

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
            None => numbers(runs, derived)?.last().map_or(1, |newest| newest.saturating_add(1)),
        };
        let base = name.as_ref().unwrap_or(derived);
        loop {
            let path = runs.join(base.numbered(number).to_string());
            match std::fs::create_dir(&path) {
                Ok(()) => return Self::begin(path, base),
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

    /// Locks a new folder, and notes the name of its run.
    fn begin(path: PathBuf, name: &RunName) -> Result<Self, BossManError> {
        let folder = Self::lock(path, true)?;
        let noted = write(&folder.file(NAME), name.to_string().as_bytes());
        noted.inspect_err(|_| folder.discard()).map(|()| folder)
    }

    /// Locks the newest folder of the name, to go on in it. `None` if there is none.
    ///
    /// # Errors
    /// The folder cannot be read, may be another run's, has links out of it that are not this
    /// user's, or another process trains in it.
    pub fn newest(settings: &RunFolderSettings) -> Result<Option<Self>, BossManError> {
        if let Some(path) = &settings.resume_in {
            let path = resolve_latest(path);
            check_may_write(&path)?;
            return Self::lock(path, false).map(Some);
        }
        let RunFolderSettings { runs, name, derived, .. } = settings;
        let path = match name {
            Some(name) => Some(runs.join(name.to_string())).filter(|path| path.is_dir()),
            None => newest_begun(runs, derived)?,
        };
        path.map(|path| Self::lock(path, false)).transpose()
    }

    fn lock(path: PathBuf, is_new: bool) -> Result<Self, BossManError> {
        let _lock = FolderLock::take(&path)?;
        // They may be those of a process that was killed.
        remove_port(&path);
        remove_drafts(&path);
        Ok(RunFolder { path, _lock, is_new })
    }

    /// Deletes the folder of a run with everything in it, unless a process trains there. Returns
    /// whether it was deleted. `latest` then leads to the newest run that is left.
    ///
    /// # Errors
    /// It is not the folder of a run, or it cannot be locked or deleted.
    pub fn delete(path: &Path) -> Result<bool, BossManError> {
        if !has_run(path) {
            let problem = "is no run's folder, because it has no events.jsonl; it was not deleted";
            return Err(BossManError::file(path, problem));
        }
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
            // Its time tells whether another run wrote it since.
            let written = from.metadata()?.modified()?;
            File::options().append(true).open(to)?.set_modified(written)?;
            std::fs::remove_file(from)
        }
        moved => moved,
    }
}

/// The numbers of all folders of this name. They ascend.
fn numbers(runs: &Path, name: &RunName) -> Result<Vec<u64>, BossManError> {
    let entries = match std::fs::read_dir(runs) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| BossManError::io(runs, &e))?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| BossManError::io(runs, &e))?;
        numbers.extend(entry.file_name().to_str().and_then(|folder| name.number_of(folder)));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The newest folder of a run that began under this name, or of one that never began if there is no
/// other. `digits-2` may also be the first run of `digits-2.yaml`, and is that of `digits` only if
/// it says so.
fn newest_begun(runs: &Path, name: &RunName) -> Result<Option<PathBuf>, BossManError> {
    let expected = name.to_string();
    let mut not_begun = None;
    for number in numbers(runs, name)?.into_iter().rev() {
        let path = runs.join(name.numbered(number).to_string());
        match bounded_file::read(&path.join(NAME), MAX_BYTES)? {
            Some(began_as) if began_as.trim_ascii() != expected.as_bytes() => {}
            None if number > 1 => {
                let problem = format!(
                    "may be no run of {expected}, because it has no file `{NAME}`; go on in it \
                     with `bossman train {} --resume`, or write {expected} into {}",
                    path.display(),
                    path.join(NAME).display()
                );
                return Err(BossManError::file(&path, problem));
            }
            _ if is_run_folder(&path) => return Ok(Some(path)),
            _ => not_begun = not_begun.or(Some(path)),
        }
    }
    Ok(not_begun)
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
        std::fs::write(again.file("events.jsonl"), "").unwrap();
        assert!(!RunFolder::delete(again.path()).unwrap());
        let path = again.path().to_path_buf();
        drop(again);
        assert!(RunFolder::delete(&path).unwrap());
        assert!(RunFolder::newest(&runs).unwrap().is_none());
    }

    /// `digits-2` is the second run of digits.yaml, or the first one of digits-2.yaml.
    #[test]
    fn a_run_goes_on_only_where_its_name_began() {
        let place = tempfile::tempdir().unwrap();
        let of = |name: &str| {
            let derived = RunName::parse(name).unwrap();
            RunFolderSettings { derived, ..settings(place.path(), None) }
        };
        let newest = |name: &str| {
            RunFolder::newest(&of(name)).map(|found| found.map(|of| name_of(&of).to_string()))
        };
        drop(RunFolder::create(&of("digits")).unwrap());
        drop(RunFolder::create(&of("digits-2")).unwrap());
        assert_eq!(newest("digits").unwrap().unwrap(), "digits");
        // No folder is used by two runs.
        drop(RunFolder::create(&of("digits")).unwrap());
        assert_eq!(newest("digits").unwrap().unwrap(), "digits-3");
        assert_eq!(newest("digits-3").unwrap(), None);
        assert_eq!(newest("digits-2").unwrap().unwrap(), "digits-2");

        // Folders that were made before the file was.
        std::fs::remove_file(place.path().join("digits-3").join(NAME)).unwrap();
        assert_eq!(newest("digits-3").unwrap().unwrap(), "digits-3");
        let unknown = newest("digits").unwrap_err().to_string();
        assert!(unknown.contains("may be no run of digits,"), "{unknown}");
        assert!(unknown.contains("digits-3 --resume`"), "{unknown}");
        std::fs::write(place.path().join("digits-3").join(NAME), "digits\n").unwrap();
        assert_eq!(newest("digits").unwrap().unwrap(), "digits-3");
    }

    #[test]
    fn a_run_that_never_began_hides_none_that_did() {
        let place = tempfile::tempdir().unwrap();
        let runs = settings(place.path(), None);
        let first = RunFolder::create(&runs).unwrap();
        drop(RunFolder::create(&runs).unwrap());
        let newest = || name_of(&RunFolder::newest(&runs).unwrap().unwrap()).to_string();
        assert_eq!(newest(), "digits-2");
        std::fs::write(first.file("run.yaml"), "").unwrap();
        drop(first);
        assert_eq!(newest(), "digits");
    }

    #[test]
    fn a_mistake_leaves_no_folder() {
        let place = tempfile::tempdir().unwrap();
        let runs = place.path().join("runs");
        RunFolder::create(&settings(&runs, None)).unwrap().discard();
        assert!(!runs.exists());
    }
}
