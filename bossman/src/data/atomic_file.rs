//! Files that appear whole under their name or not at all: written to a temporary file beside it,
//! which is renamed at the end.

use crate::data::disk::{flush, flush_folder_of, folder_of, metadata};
use crate::BossManError;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, TempPath};

/// The beginning of the names of drafts.
const PREFIX: &str = ".bossman-";

/// Checks that a file can be written there. Called before the work that makes it.
///
/// # Errors
/// The path is a folder, a device or a pipe, which would be replaced. Or no file can be written
/// beside it.
pub(crate) fn check_writable(path: &Path) -> Result<(), BossManError> {
    create(path).map(drop)
}

/// Begins a file, which is deleted unless [`commit`] is called. The errors are those of
/// [`check_writable`].
pub(crate) fn create(path: &Path) -> Result<BufWriter<NamedTempFile>, BossManError> {
    match metadata(path).map_err(|e| BossManError::io(path, &e))? {
        Some(there) if there.is_dir() => {
            return Err(BossManError::file(path, "is a folder; name a file"))
        }
        Some(there) if !there.is_file() => {
            return Err(BossManError::file(
                path,
                "is a device or a pipe, which cannot be replaced; name a file",
            ))
        }
        _ => {}
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        let problem = match folder.exists() {
            true => format!("{} is a file, not a folder; name another place", folder.display()),
            false => format!("there is no folder {}; make it first", folder.display()),
        };
        return Err(BossManError::file(path, problem));
    }
    temporary_file_beside(path).map(BufWriter::new).map_err(|e| BossManError::io(path, &e))
}

/// Copies an open file. The errors are those of [`check_writable`], or it cannot be read.
pub(crate) fn copy(from: &mut File, to: &Path) -> Result<(), BossManError> {
    let mut file = create(to)?;
    std::io::copy(from, &mut file).map_err(|e| BossManError::io(to, &e))?;
    commit(to, file)
}

/// Flushes the file to the disk and moves it to its final name.
pub(crate) fn commit(path: &Path, file: BufWriter<NamedTempFile>) -> Result<(), BossManError> {
    complete(path, file)?.rename()
}

/// A file that is on the disk and has a temporary name. It is deleted unless it is renamed.
#[must_use]
pub(crate) struct Complete {
    draft: TempPath,
    path: PathBuf,
}

/// Flushes the file to the disk and closes it, so that many can wait for their names.
pub(crate) fn complete(
    path: &Path,
    mut file: BufWriter<NamedTempFile>,
) -> Result<Complete, BossManError> {
    let whole =
        file.flush().and_then(|()| file.into_inner().map_err(std::io::IntoInnerError::into_error));
    let flushed = whole.and_then(|file| {
        flush(file.as_file())?;
        Ok(file.into_temp_path())
    });
    let draft = flushed.map_err(|e| BossManError::io(path, &e))?;
    Ok(Complete { draft, path: path.to_path_buf() })
}

impl Complete {
    /// Moves the file to its final name.
    pub(crate) fn rename(self) -> Result<(), BossManError> {
        let Complete { draft, path } = self;
        let moved = draft.persist(&path).map_err(std::io::Error::from);
        moved.and_then(|()| flush_folder_of(&path)).map_err(|e| BossManError::io(&path, &e))
    }
}

/// Creates a temporary file in the same folder, with the permissions of an ordinary file. It is
/// removed unless it is kept.
pub(crate) fn temporary_file_beside(path: &Path) -> std::io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The user's umask restricts these permissions.
        file.permissions(std::fs::Permissions::from_mode(0o666));
    }
    file.prefix(PREFIX).tempfile_in(folder_of(path))
}

/// Deletes the drafts that killed processes have left in a folder, as far as that is possible. Only
/// for a folder in which no other process writes.
pub(crate) fn remove_drafts(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_draft = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_draft && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            std::fs::remove_file(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drafts_of_a_killed_process_are_deleted() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("w.safetensors");
        std::fs::write(&path, "whole").unwrap();
        let draft = temporary_file_beside(&path).unwrap().into_temp_path().keep().unwrap();
        std::fs::create_dir(place.path().join(".bossman-folder")).unwrap();
        remove_drafts(place.path());
        assert!(!draft.exists() && path.exists() && place.path().join(".bossman-folder").exists());
    }

    #[test]
    fn a_file_is_replaced_when_all_is_written_and_not_before() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.txt");
        std::fs::write(&path, "old").unwrap();
        let text = || std::fs::read_to_string(&path).unwrap();
        let mut file = create(&path).unwrap();
        file.write_all(b"new").unwrap();
        drop(file);
        assert_eq!(text(), "old");
        let mut file = create(&path).unwrap();
        file.write_all(b"new").unwrap();
        commit(&path, file).unwrap();
        assert_eq!(text(), "new");
        assert_eq!(
            std::fs::read_dir(place.path()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("a.txt"), "kept").unwrap();
        let refused = |path: &Path| check_writable(path).unwrap_err().to_string();
        assert!(refused(place.path()).ends_with("is a folder; name a file"));
        let under = place.path().join("a.txt/w.safetensors");
        assert!(
            refused(&under).ends_with("a.txt is a file, not a folder; name another place"),
            "{}",
            refused(&under)
        );
        assert!(refused(&place.path().join("none/w.safetensors")).ends_with("none; make it first"));
        #[cfg(unix)]
        {
            // As root it would be replaced for all of the machine.
            assert!(
                refused(Path::new("/dev/null")).ends_with("which cannot be replaced; name a file")
            );
            assert!(
                refused(Path::new("/dev/full")).ends_with("which cannot be replaced; name a file")
            );
        }
    }
}
