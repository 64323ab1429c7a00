//! Files of a stranger's folder, read whole but only up to a limit.

use crate::data::disk;
use crate::BossManError;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a file. `None` if it is not there.
///
/// # Errors
/// It has more than `most` bytes, or cannot be read.
pub(crate) fn read(path: &Path, most: u64) -> Result<Option<Vec<u8>>, BossManError> {
    let io = |e: std::io::Error| BossManError::io(path, &e);
    let Some(there) = disk::metadata(path).map_err(io)? else { return Ok(None) };
    // A pipe or a device would wait, or never end.
    if !there.is_file() {
        return Err(BossManError::file(path, "is not a file"));
    }
    let too_large = |size: u64| {
        let problem = format!("has {size} bytes; at most {most} are read. Is it the right file?");
        BossManError::file(path, problem)
    };
    if there.len() > most {
        return Err(too_large(there.len()));
    }
    let mut bytes = Vec::new();
    // The file may have grown since.
    File::open(path).map_err(io)?.take(most + 1).read_to_end(&mut bytes).map_err(io)?;
    match bytes.len() as u64 {
        size if size > most => Err(too_large(size)),
        _ => Ok(Some(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.json");
        assert_eq!(read(&path, 3).unwrap(), None);
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read(&path, 3).unwrap().unwrap(), b"abc");
        let error = read(&path, 2).unwrap_err().to_string();
        assert!(error.contains("a.json: has 3 bytes; at most 2 are read"), "{error}");
        let error = read(place.path(), 2).unwrap_err().to_string();
        assert!(error.ends_with("is not a file"), "{error}");
    }
}
