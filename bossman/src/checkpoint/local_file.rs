//! Files of a checkpoint on this machine, with their hashes.

use super::manifest::hex;
use crate::data::disk;
use crate::weights::tensor_headers::FileStamp;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// The bytes that are read together.
const READ_BYTES: usize = 1 << 20;

/// The result of looking for a file.
pub(super) enum Content<T> {
    Whole(T),
    /// There is no such file.
    Missing,
    /// It has this size, which is more than expected.
    TooLarge(u64),
}

/// A file and its hash.
#[derive(Debug)]
pub(super) struct LocalFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub(super) sha256: String,
    /// The file as it was when it was hashed.
    stamp: Mutex<FileStamp>,
    /// Set for a copy of a file in an object store. It is deleted with this value.
    _copy: Option<TempPath>,
}

impl LocalFile {
    /// Hashes a file of at most `most` bytes.
    pub(super) fn hash(path: &Path, most: u64) -> Result<Content<Self>> {
        // A pipe would block, and a device may have no end.
        if !std::fs::metadata(path).map(|there| there.is_file())? {
            return Ok(Content::Missing);
        }
        let file = File::open(path)?;
        let stamp = FileStamp::of(&file.metadata()?);
        if stamp.length() > most {
            return Ok(Content::TooLarge(stamp.length()));
        }
        let (mut hasher, mut bytes) = (Sha256::new(), 0u64);
        let mut part = vec![0; READ_BYTES];
        // It may grow meanwhile.
        let mut file = file.take(most.saturating_add(1));
        loop {
            let read = match file.read(&mut part) {
                Ok(0) => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            let Some(read) = part.get(..read) else { break };
            hasher.update(read);
            bytes += read.len() as u64;
        }
        if bytes > most {
            return Ok(Content::TooLarge(bytes));
        }
        let (path, sha256) = (path.to_path_buf(), hex(&hasher.finalize()));
        Ok(Content::Whole(LocalFile { path, bytes, sha256, stamp: Mutex::new(stamp), _copy: None }))
    }

    /// Copies the content of a file in an object store to a temporary file.
    pub(super) fn copy(content: &[u8]) -> Result<Self> {
        let mut file = tempfile::Builder::new().prefix("bossman-checkpoint-").tempfile()?;
        file.write_all(content)?;
        let (sha256, bytes) = (hex(&Sha256::digest(content)), content.len() as u64);
        let copy = file.into_temp_path();
        // Only a closed file has its last stamp everywhere.
        let stamp = Mutex::new(FileStamp::of(&std::fs::metadata(&copy)?));
        Ok(LocalFile { path: copy.to_path_buf(), bytes, sha256, stamp, _copy: Some(copy) })
    }

    /// Whether the file has this stamp.
    pub(super) fn has_stamp(&self, stamp: &FileStamp) -> bool {
        *self.stamp.lock() == *stamp
    }

    /// Reads bytes of the file. Repeats that if a disk or a network mount fails for a moment.
    ///
    /// # Errors
    /// The file cannot be read, or its content is not the one that was hashed.
    pub(super) fn read(&self, start: u64, bytes: usize) -> Result<Vec<u8>> {
        disk::retry_blocking(disk::WAITS, || self.read_once(start, bytes))
    }

    fn read_once(&self, start: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        let before = FileStamp::of(&file.metadata()?);
        self.check_stamp(&before)?;
        file.seek(SeekFrom::Start(start))?;
        let mut content = vec![0; bytes];
        file.read_exact(&mut content)?;
        match FileStamp::of(&file.metadata()?) == before {
            true => Ok(content),
            false => Err(changed()),
        }
    }

    /// Another stamp may stand for the same content, for example after a backup or on mounts whose
    /// numbers of files change. Then the file is hashed again.
    fn check_stamp(&self, now: &FileStamp) -> Result<()> {
        let mut stamp = self.stamp.lock();
        if *stamp == *now {
            return Ok(());
        }
        match Self::hash(&self.path, self.bytes)? {
            Content::Whole(again) if again.sha256 == self.sha256 && again.has_stamp(now) => {
                *stamp = now.clone();
                Ok(())
            }
            _ => Err(changed()),
        }
    }
}

fn changed() -> Error {
    Error::other(
        "was replaced or changed after it was compared with the manifest; start again, and let \
         nothing write to it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(path: &Path, most: u64) -> LocalFile {
        match LocalFile::hash(path, most).unwrap() {
            Content::Whole(file) => file,
            Content::Missing => panic!("missing"),
            Content::TooLarge(bytes) => panic!("{bytes} bytes"),
        }
    }

    /// CKPT-9.
    #[test]
    fn a_file_that_is_touched_is_read_and_one_that_changes_is_not() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        std::fs::write(&path, "content").unwrap();
        let file = hashed(&path, 7);
        assert_eq!(file.read(3, 4).unwrap(), b"tent");
        // The same content in another file.
        std::fs::write(place.path().join("other"), "content").unwrap();
        std::fs::rename(place.path().join("other"), &path).unwrap();
        assert_eq!(file.read(0, 3).unwrap(), b"con");
        std::fs::write(&path, "another").unwrap();
        let error = file.read(0, 3).unwrap_err().to_string();
        assert!(error.starts_with("was replaced or changed"), "{error}");
    }

    #[test]
    fn only_a_file_of_its_size_is_hashed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        std::fs::write(&path, "content").unwrap();
        assert!(matches!(LocalFile::hash(&path, 6), Ok(Content::TooLarge(7))));
        assert!(matches!(LocalFile::hash(place.path(), 1 << 20), Ok(Content::Missing)));
        #[cfg(unix)]
        assert!(matches!(LocalFile::hash(Path::new("/dev/zero"), 9), Ok(Content::Missing)));
        let copy = LocalFile::copy(b"content").unwrap();
        assert_eq!(copy.sha256, hashed(&path, 7).sha256);
        let at = copy.path.clone();
        assert_eq!(copy.read(0, 7).unwrap(), b"content");
        drop(copy);
        assert!(!at.exists());
    }
}
