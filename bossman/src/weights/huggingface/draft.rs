//! A new folder that appears whole under its name or not at all.

use crate::data::disk;
use crate::BossManError;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder beside its final name. It is deleted unless [`Draft::finish`] is called.
pub(super) struct Draft {
    folder: TempDir,
    to: PathBuf,
}

impl Draft {
    /// Begins the folder `to`, which must neither be there nor have to do with the source.
    pub(super) fn begin(source: &Path, to: &Path) -> Result<Self, BossManError> {
        let refused = |problem: String| Err(BossManError::file(to, problem));
        let canonical = |path: &Path| path.canonicalize().map_err(|e| BossManError::io(path, &e));
        let from = canonical(source)?;
        let advice = "name a new folder elsewhere";
        if is_there(to)? {
            return refused(match canonical(to) {
                Ok(there) if there == from => {
                    format!("is the folder that the weights came from; {advice}")
                }
                Ok(there) if from.starts_with(&there) => {
                    let source = source.display();
                    format!("contains {source}, the folder that the weights came from; {advice}")
                }
                _ => "is there already; name a new folder".into(),
            });
        }
        if to.file_name().is_none() {
            return refused("is no name of a folder; name a new folder".into());
        }
        let parent = disk::folder_of(to);
        if !parent.is_dir() {
            return refused(format!("there is no folder {}; make it first", parent.display()));
        }
        if canonical(parent)?.starts_with(&from) {
            return refused(format!("is inside the folder that the weights came from; {advice}"));
        }
        let folder = tempfile::Builder::new().prefix(".bossman-").tempdir_in(parent);
        let folder = folder.map_err(|e| BossManError::io(to, &e))?;
        Ok(Draft { folder, to: to.to_path_buf() })
    }

    /// Its temporary path.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives it its name.
    pub(super) fn finish(self) -> Result<(), BossManError> {
        let Draft { folder, to } = self;
        // Renaming would replace an empty folder.
        if is_there(&to)? {
            return Err(BossManError::file(&to, "was made by somebody else meanwhile"));
        }
        let io = |e: std::io::Error| BossManError::io(&to, &e);
        disk::flush_folder_of(&folder.path().join("config.json")).map_err(io)?;
        std::fs::rename(folder.path(), &to).map_err(io)?;
        // Nothing is left under the temporary name.
        let _ = folder.keep();
        disk::flush_folder_of(&to).map_err(io)
    }
}

/// Whether something has this path, be it a link that leads nowhere.
fn is_there(path: &Path) -> Result<bool, BossManError> {
    let is_found = disk::metadata(path).map_err(|e| BossManError::io(path, &e))?.is_some();
    Ok(is_found || path.is_symlink())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(source: &Path, to: &Path) -> String {
        Draft::begin(source, to).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn only_a_new_folder_away_from_the_source_is_written() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let source = at("outer/source");
        std::fs::create_dir_all(source.join("below")).unwrap();
        std::fs::create_dir(at("empty")).unwrap();
        std::fs::write(at("file"), "x").unwrap();
        for (to, expected) in [
            (source.clone(), "is the folder that the weights came from"),
            (source.join("."), "is the folder that the weights came from"),
            (at("outer"), "outer/source, the folder that the weights came from"),
            (source.join("new"), "is inside the folder that the weights came from"),
            (source.join("below/new"), "is inside the folder that the weights came from"),
            (at("empty"), "is there already; name a new folder"),
            (at("file"), "is there already; name a new folder"),
            (PathBuf::new(), "is no name of a folder"),
            (at("file/new"), "file; make it first"),
            (at("none/new"), "none; make it first"),
        ] {
            let error = refused(&source, &to);
            assert!(error.contains(expected), "{}: {error}", to.display());
        }
        let names = || std::fs::read_dir(place.path()).unwrap().count();
        assert_eq!(names(), 3, "no draft stays");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&source, at("link")).unwrap();
            std::os::unix::fs::symlink(at("nowhere"), at("broken")).unwrap();
            assert!(refused(&source, &at("link/new")).contains("is inside the folder"));
            assert!(refused(&source, &at("broken")).contains("is there already"));
            assert_eq!(names(), 5, "no draft stays");
        }
    }

    #[test]
    fn a_folder_appears_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir(at("source")).unwrap();
        let begin = || {
            let draft = Draft::begin(&at("source"), &at("to")).unwrap();
            std::fs::write(draft.path().join("config.json"), "{}").unwrap();
            draft
        };
        drop(begin());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        let (first, second) = (begin(), begin());
        first.finish().unwrap();
        assert!(at("to/config.json").is_file());
        let error = second.finish().unwrap_err().to_string();
        assert!(error.ends_with("to: was made by somebody else meanwhile"), "{error}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2);
    }
}
