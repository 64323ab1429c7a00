//! What was unpacked: read up to a size, and found by its ending.

use crate::BossManError;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Apt's longest list of descriptions has some 30 MB.
const MOST_BYTES: u64 = 256 << 20;
const MOST_FILES: usize = 100_000;
const DEEPEST: usize = 32;

pub(super) fn bytes(path: &Path) -> Result<Vec<u8>, BossManError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| BossManError::file(path, format!("{e}; the package has changed")))?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| BossManError::file(path, e))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(BossManError::file(
            path,
            format!("has more than {} MiB; the package has changed", MOST_BYTES >> 20),
        ));
    }
    Ok(bytes)
}

/// What is not UTF-8 becomes the sign for that.
pub(super) fn text(path: &Path) -> Result<String, BossManError> {
    Ok(String::from_utf8(bytes(path)?).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// The files below a folder whose names end so, in the order of their paths. Links are not followed.
pub(super) fn ending(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, BossManError> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let error = |e: std::io::Error| BossManError::file(&folder, e);
        for entry in std::fs::read_dir(&folder).map_err(error)? {
            let entry = entry.map_err(error)?;
            let kind = entry.file_type().map_err(error)?;
            if kind.is_dir() && depth < DEEPEST {
                folders.push((entry.path(), depth + 1));
            } else if kind.is_file() && entry.file_name().to_string_lossy().ends_with(ending) {
                found.push(entry.path());
            }
        }
        if found.len() + folders.len() > MOST_FILES {
            return Err(BossManError::file(&folder, format!("there are more than {MOST_FILES} files")));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_their_ending_in_order() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("b/c")).unwrap();
        for name in ["z.mo", "b/c/a.mo", "b/a.po"] {
            std::fs::write(folder.path().join(name), b"\xffa").unwrap();
        }
        let found = ending(folder.path(), ".mo").unwrap();
        assert_eq!(found, ["b/c/a.mo", "z.mo"].map(|name| folder.path().join(name)));
        assert_eq!(text(&found[0]).unwrap(), "\u{fffd}a");
        assert!(ending(&folder.path().join("none"), ".mo").is_err() && bytes(folder.path()).is_err());
    }
}
