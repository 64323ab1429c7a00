//! Hashes of the files that a data set reads.

use crate::{DataError, Dataset};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most files that are hashed one by one. A folder of pictures has many more.
const NAMED: usize = 64;
/// The bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// The SHA-256 of a file.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FileHash {
    /// Its size.
    pub bytes: u64,
    /// The SHA-256 of its content.
    pub sha256: [u8; 32],
}

impl FileHash {
    /// Hashes a file, which may be larger than memory.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let (mut file, mut hash) = (File::open(path)?, Sha256::new());
        let (mut buffer, mut bytes) = (vec![0; CHUNK], 0);
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(FileHash { bytes, sha256: hash.finalize().into() }),
                Ok(read) => {
                    hash.update(&buffer[..read]);
                    bytes += read as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Its SHA-256 in hexadecimal digits.
    pub fn hex(&self) -> String {
        hex(&self.sha256)
    }
}

/// The hashes of all files of a data set. They do not depend on where the files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataHash {
    /// The number of files.
    pub files: u64,
    /// The size of all files.
    pub bytes: u64,
    /// The SHA-256 over the SHA-256s of the files in their order, in hexadecimal digits.
    pub sha256: String,
    /// The SHA-256 of each file, if there are at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<String>,
}

impl Dataset {
    /// The files that it reads, in an order that depends on their names alone.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn files(&self) -> Result<Vec<PathBuf>, DataError> {
        self.opened.source.files()
    }

    /// Hashes all files. Reads them once.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn hash(&self) -> Result<DataHash, DataError> {
        let files = self.files()?;
        let (mut all, mut bytes, mut each) = (Sha256::new(), 0u64, Vec::new());
        for file in &files {
            let hash = FileHash::of(file).map_err(|e| DataError::io(file, &e))?;
            all.update(hash.sha256);
            bytes = bytes.saturating_add(hash.bytes);
            if files.len() <= NAMED {
                each.push(hash.hex());
            }
        }
        let sha256 = hex(&<[u8; 32]>::from(all.finalize()));
        Ok(DataHash { files: files.len() as u64, bytes, sha256, each })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_hash_of_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        let hash = FileHash::of(&path).unwrap();
        assert_eq!(hash.bytes, 3);
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.hex(), sha256);
        // Longer than one read.
        let long = vec![7; CHUNK + 5];
        std::fs::write(&path, &long).unwrap();
        let hash = FileHash::of(&path).unwrap();
        assert_eq!(hash.bytes, long.len() as u64);
        assert_eq!(hash.sha256, <[u8; 32]>::from(Sha256::digest(&long)));
    }
}
