//! A file of a checkpoint that is written in any order.

use super::manifest::hex;
use crate::data::atomic_file;
use crate::data::disk::{flush_folder_of, folder_of};
use crate::BossManError;
use sha2::{Digest, Sha256};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The bytes that are read back together.
const READ_BYTES: usize = 1 << 20;

/// A file that is not complete. On this machine it is a temporary file beside its final name, which
/// is deleted unless it is completed. For an object store it is in memory. Its methods block.
pub(super) struct Draft {
    /// Its final path, or its name in messages if it is for an object store.
    path: PathBuf,
    is_local: bool,
    bytes: u64,
    /// Everything before the tensors, until the file is begun.
    header: Vec<u8>,
    content: Option<Content>,
    /// `None` if nobody asks for the hash.
    hasher: Option<Sha256>,
    /// The bytes from the first on that are hashed.
    hashed: u64,
}

enum Content {
    Disk(NamedTempFile),
    Memory(Vec<u8>),
}

/// A complete file.
pub(super) struct Complete {
    pub(super) sha256: String,
    /// Its content, which must be sent to the object store. `None` on this machine.
    pub(super) unsent: Option<Vec<u8>>,
}

impl Draft {
    /// A file of this size that begins with `header`. Nothing is written yet.
    pub(super) fn new(path: PathBuf, is_local: bool, header: Vec<u8>, bytes: u64) -> Self {
        let (content, hasher) = (None, Some(Sha256::new()));
        Draft { path, is_local, bytes, header, content, hasher, hashed: 0 }
    }

    /// As [`Draft::new`], of a file of this machine whose hash nobody asks for.
    pub(super) fn unhashed(path: PathBuf, header: Vec<u8>, bytes: u64) -> Self {
        Draft { hasher: None, ..Draft::new(path, true, header, bytes) }
    }

    /// Makes an error about it.
    pub(super) fn error(&self, problem: &str) -> BossManError {
        BossManError::file(&self.path, problem)
    }

    /// Writes bytes behind the header, at this place of the file. No byte is written twice.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), BossManError> {
        self.begin()?;
        self.put(at, bytes)
    }

    /// Gives the file its final name. All bytes have been written.
    ///
    /// # Errors
    /// The file cannot be written, or not read back.
    pub(super) fn complete(mut self) -> Result<Complete, BossManError> {
        self.begin()?;
        self.hash_rest().map_err(|e| BossManError::io(&self.path, &e))?;
        let sha256 = self.hasher.map(|hasher| hex(&hasher.finalize())).unwrap_or_default();
        let unsent = match self.content {
            Some(Content::Disk(file)) => {
                atomic_file::commit(&self.path, BufWriter::new(file))?;
                None
            }
            Some(Content::Memory(all)) => Some(all),
            None => None,
        };
        Ok(Complete { sha256, unsent })
    }

    /// Creates the file with its header, unless that is done.
    fn begin(&mut self) -> Result<(), BossManError> {
        if self.content.is_some() {
            return Ok(());
        }
        let content = match self.is_local {
            true => file_of_size(&self.path, self.bytes).map(Content::Disk),
            false => memory_of_size(self.bytes).map(Content::Memory),
        };
        self.content = Some(content.map_err(|e| BossManError::io(&self.path, &e))?);
        let header = std::mem::take(&mut self.header);
        self.put(0, &header)
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), BossManError> {
        let outside = || io::Error::other("a piece is outside the file");
        let written = match &mut self.content {
            Some(Content::Disk(file)) => {
                let file = file.as_file_mut();
                file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(bytes))
            }
            Some(Content::Memory(all)) => {
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                let place = all.get_mut(start..start.saturating_add(bytes.len()));
                place.map(|place| place.copy_from_slice(bytes)).ok_or_else(outside)
            }
            None => Err(outside()),
        };
        written.map_err(|e| BossManError::io(&self.path, &e))?;
        // What comes in order is not read back.
        if let Some(hasher) = self.hasher.as_mut().filter(|_| at == self.hashed) {
            hasher.update(bytes);
            self.hashed += bytes.len() as u64;
        }
        Ok(())
    }

    /// Hashes what did not come in order.
    fn hash_rest(&mut self) -> io::Result<()> {
        let Some(hasher) = &mut self.hasher else { return Ok(()) };
        match &mut self.content {
            Some(Content::Disk(file)) => {
                let file = file.as_file_mut();
                file.seek(SeekFrom::Start(self.hashed))?;
                let mut chunk = vec![0u8; READ_BYTES];
                while self.hashed < self.bytes {
                    let left = usize::try_from(self.bytes - self.hashed).unwrap_or(usize::MAX);
                    let part = &mut chunk[..left.min(READ_BYTES)];
                    file.read_exact(part)?;
                    hasher.update(&*part);
                    self.hashed += part.len() as u64;
                }
            }
            Some(Content::Memory(all)) => {
                let hashed = usize::try_from(self.hashed).unwrap_or(usize::MAX);
                hasher.update(all.get(hashed..).unwrap_or_default());
            }
            None => {}
        }
        Ok(())
    }
}

/// Creates a temporary file of this size beside `path`, and the folder of both.
fn file_of_size(path: &Path, bytes: u64) -> io::Result<NamedTempFile> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        std::fs::create_dir_all(folder)?;
        // A loss of power must not undo the checkpoint's folder, or this one in it.
        flush_folder_of(folder)?;
        flush_folder_of(folder_of(folder))?;
    }
    let file = atomic_file::temporary_file_beside(path)?;
    file.as_file().set_len(bytes)?;
    Ok(file)
}

fn memory_of_size(bytes: u64) -> io::Result<Vec<u8>> {
    let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
    let bytes = usize::try_from(bytes).map_err(|_| too_large())?;
    let mut all = Vec::new();
    all.try_reserve_exact(bytes).map_err(|_| too_large())?;
    all.resize(bytes, 0);
    Ok(all)
}
