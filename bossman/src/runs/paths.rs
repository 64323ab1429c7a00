//! Which folder is a run's, and where `latest` leads.

use super::name::LATEST;
use crate::BossManError;
use std::path::{Path, PathBuf};

/// The run as carried out.
const RUN: &str = "run.yaml";
/// The events of the run. The process that makes the folder makes this file at once.
const LOG: &str = "events.jsonl";

/// Whether a path is the folder of a run.
pub fn is_run_folder(path: &Path) -> bool {
    path.join(RUN).is_file()
}

/// Whether a path is a folder that `bossman train` made for a run. A run that did not begin has no
/// `run.yaml` there, and a project of the user has one, too.
pub(super) fn has_run(path: &Path) -> bool {
    path.join(LOG).is_file()
}

/// The folder to which `latest` leads now. A run that begins later changes the link, and one
/// command must read one folder.
pub fn resolve_latest(path: &Path) -> PathBuf {
    match std::fs::read_link(path) {
        Ok(target) => path.parent().unwrap_or_else(|| Path::new(".")).join(target),
        Err(_) => path.to_path_buf(),
    }
}

/// Makes `latest` a link to the folder of a run beside it.
///
/// # Errors
/// The link cannot be made.
pub(super) fn lead_to(folder: &Path) -> Result<(), BossManError> {
    let (Some(runs), Some(name)) = (folder.parent(), folder.file_name()) else { return Ok(()) };
    replace_link(&runs.join(LATEST), Path::new(name))
}

/// Makes `latest` lead to the run that began last of those that are left, if its own was deleted.
///
/// # Errors
/// The folder of runs cannot be read, or the link cannot be changed.
pub(super) fn mend_latest(runs: &Path) -> Result<(), BossManError> {
    let link = runs.join(LATEST);
    if !link.is_symlink() || link.exists() {
        return Ok(());
    }
    let fault = |e: std::io::Error| BossManError::io(runs, &e);
    let mut newest = None;
    for entry in std::fs::read_dir(runs).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        // Written when training begins.
        let began = path.join("model.yaml").metadata().and_then(|of| of.modified()).ok();
        if is_run_folder(&path) && has_run(&path) && !path.is_symlink() {
            newest = newest.max(Some((began, path)));
        }
    }
    match newest {
        Some((_, folder)) => lead_to(&folder),
        None => std::fs::remove_file(&link).map_err(|e| BossManError::io(&link, &e)),
    }
}

/// Replaces a link in one step, so that it always leads somewhere. Never replaces a file.
///
/// # Errors
/// The link cannot be made, or a file of that name is there.
pub(super) fn replace_link(link: &Path, target: &Path) -> Result<(), BossManError> {
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

    #[test]
    fn latest_leads_to_the_run_that_was_named_last() {
        let place = tempfile::tempdir().unwrap();
        let latest = place.path().join(LATEST);
        for name in ["digits", "digits-2"] {
            lead_to(&place.path().join(name)).unwrap();
            assert_eq!(std::fs::read_link(&latest).unwrap(), Path::new(name));
            assert_eq!(resolve_latest(&latest), place.path().join(name));
        }
        std::fs::remove_file(&latest).unwrap();
        std::fs::write(&latest, "a file of the user").unwrap();
        let refused = lead_to(&place.path().join("digits")).unwrap_err().to_string();
        assert!(refused.contains("is no link"), "{refused}");
    }

    #[test]
    fn latest_is_mended_if_its_run_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let latest = place.path().join(LATEST);
        let make = |name: &str, second: u64| {
            let folder = place.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("run.yaml"), "").unwrap();
            std::fs::write(folder.join("events.jsonl"), "").unwrap();
            let model = std::fs::File::create(folder.join("model.yaml")).unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second);
            model.set_modified(time).unwrap();
        };
        // In the order of time, not of names.
        make("b", 1);
        make("a", 2);
        lead_to(&place.path().join("b")).unwrap();
        mend_latest(place.path()).unwrap();
        assert_eq!(std::fs::read_link(&latest).unwrap(), Path::new("b"));
        lead_to(&place.path().join("gone")).unwrap();
        mend_latest(place.path()).unwrap();
        assert_eq!(std::fs::read_link(&latest).unwrap(), Path::new("a"));
        for name in ["a", "b"] {
            std::fs::remove_dir_all(place.path().join(name)).unwrap();
        }
        mend_latest(place.path()).unwrap();
        assert!(!latest.is_symlink());
        mend_latest(place.path()).unwrap();
    }
}
