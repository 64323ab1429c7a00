//! The boss that trains in a run's folder: whether there is one, and where it listens.

use super::files::{open, write};
use super::lock::is_held;
use super::name::LATEST;
use super::paths::{is_run_folder, resolve_latest};
use crate::output::printable;
use crate::BossManError;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The file with the address at which the boss listens. It is stale if nobody holds the lock.
const ADDRESS: &str = "address";
/// The most bytes of that file.
const MAX_BYTES: u64 = 1024;
/// The most characters of a machine's name.
const MAX_MACHINE: usize = 64;

/// The contents of the file. The folder may be on a disk that several machines share.
#[derive(Debug, Serialize, Deserialize)]
struct Address {
    machine: String,
    port: u16,
}

/// The boss of a run, as its folder tells.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LiveBoss {
    /// No process trains in the folder.
    Nobody,
    /// A process trains there, and does not listen now.
    Silent,
    /// It listens on this machine.
    Here {
        /// Its UDP port.
        port: u16,
    },
    /// It listens on another machine.
    Elsewhere {
        /// The name of the machine.
        machine: String,
        /// Its UDP port.
        port: u16,
    },
}

impl LiveBoss {
    /// Reads the folder of a run.
    ///
    /// # Errors
    /// The lock or the address cannot be read.
    pub(crate) fn of(folder: &Path) -> Result<Self, BossManError> {
        if !is_held(folder)? {
            return Ok(LiveBoss::Nobody);
        }
        let path = folder.join(ADDRESS);
        let Some(file) = open(&path)? else { return Ok(LiveBoss::Silent) };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|e| BossManError::io(&path, &e))?;
        let wrong = |e: serde_json::Error| {
            BossManError::file(&path, format!("holds no address of a boss: {e}"))
        };
        let Address { machine, port } = serde_json::from_slice(&bytes).map_err(wrong)?;
        Ok(match machine == this_machine() {
            true => LiveBoss::Here { port },
            false => LiveBoss::Elsewhere { machine: printable(&machine, MAX_MACHINE), port },
        })
    }
}

/// Writes that the boss of this folder listens on this machine, on this port.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_port(folder: &Path, port: u16) -> Result<(), BossManError> {
    let path = folder.join(ADDRESS);
    let address = Address { machine: this_machine(), port };
    let text = serde_json::to_vec(&address).map_err(|e| BossManError::file(&path, e))?;
    write(&path, &text)
}

/// Removes the address of a boss that has ended.
pub(super) fn remove_port(folder: &Path) {
    std::fs::remove_file(folder.join(ADDRESS)).ok();
}

fn this_machine() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

/// The folder of the run that a user means who asks how it goes. `latest` changes when training
/// begins. So if a run beside it listens and waits to begin, `latest` means that run here.
///
/// # Errors
/// The folder of runs, or a folder in it, cannot be read.
pub fn resolve_newest(path: &Path) -> Result<PathBuf, BossManError> {
    let is_link = path.symlink_metadata().map_or(true, |there| there.is_symlink());
    if path.file_name().is_some_and(|name| name == LATEST) && is_link {
        let runs = path.parent().filter(|runs| !runs.as_os_str().is_empty());
        if let Some(waiting) = newest_waiting(runs.unwrap_or_else(|| Path::new(".")))? {
            return Ok(waiting);
        }
    }
    Ok(resolve_latest(path))
}

/// The run that listens and has not begun to train. If there are several, the last one.
fn newest_waiting(runs: &Path) -> Result<Option<PathBuf>, BossManError> {
    let fault = |e: std::io::Error| BossManError::io(runs, &e);
    let entries = match std::fs::read_dir(runs) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(fault)?,
    };
    let mut newest = None;
    for entry in entries {
        let folder = entry.map_err(fault)?.path();
        let listens_since = folder.join(ADDRESS).metadata().and_then(|of| of.modified());
        let Ok(since) = listens_since else { continue };
        if !folder.is_symlink() && !is_run_folder(&folder) && is_held(&folder)? {
            newest = newest.max(Some((since, folder)));
        }
    }
    Ok(newest.map(|(_, folder)| folder))
}

#[cfg(test)]
mod tests {
    use super::super::lock::FolderLock;
    use super::*;

    #[test]
    fn the_address_counts_while_the_lock_is_held() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        assert_eq!(LiveBoss::of(folder).unwrap(), LiveBoss::Nobody);
        let lock = FolderLock::take(folder).unwrap();
        assert_eq!(LiveBoss::of(folder).unwrap(), LiveBoss::Silent);
        for port in [1024, 43211] {
            write_port(folder, port).unwrap();
            assert_eq!(LiveBoss::of(folder).unwrap(), LiveBoss::Here { port });
        }
        drop(lock);
        assert_eq!(LiveBoss::of(folder).unwrap(), LiveBoss::Nobody);
        let _lock = FolderLock::take(folder).unwrap();
        remove_port(folder);
        assert_eq!(LiveBoss::of(folder).unwrap(), LiveBoss::Silent);
    }

    /// The folder may be somebody else's.
    #[test]
    fn an_address_is_input() {
        let place = tempfile::tempdir().unwrap();
        let _lock = FolderLock::take(place.path()).unwrap();
        let read = |text: &str| {
            std::fs::write(place.path().join(ADDRESS), text).unwrap();
            LiveBoss::of(place.path())
        };
        let machine = "attic 2J".to_string();
        let elsewhere = read("{\"machine\":\"attic\\n2J\",\"port\":7}").unwrap();
        assert_eq!(elsewhere, LiveBoss::Elsewhere { machine, port: 7 });
        let long = format!("{{\"machine\":\"{}\",\"port\":7}}", "a".repeat(2000));
        for text in ["", "{}", "{\"machine\":\"a\",\"port\":70000}", &long] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("address: holds no address of a boss"), "{error}");
        }
    }

    #[test]
    fn latest_means_a_run_that_waits_to_begin() {
        let place = tempfile::tempdir().unwrap();
        let latest = place.path().join(LATEST);
        assert_eq!(resolve_newest(&latest).unwrap(), latest);
        let make = |name: &str| {
            let folder = place.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            folder
        };
        let (trained, waits) = (make("trained"), make("waits"));
        std::fs::write(trained.join("run.yaml"), "").unwrap();
        std::os::unix::fs::symlink("trained", &latest).unwrap();
        assert_eq!(resolve_newest(&latest).unwrap(), trained);
        let lock = FolderLock::take(&waits).unwrap();
        assert_eq!(resolve_newest(&latest).unwrap(), trained);
        write_port(&waits, 7).unwrap();
        assert_eq!(resolve_newest(&latest).unwrap(), waits);
        assert_eq!(resolve_newest(&trained).unwrap(), trained);
        // It crashed.
        drop(lock);
        assert_eq!(resolve_newest(&latest).unwrap(), trained);
    }
}
