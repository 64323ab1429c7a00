//! Bytes that can be read at any place, in a file or in memory.
//!
//! A format that cannot be read at any place (text, gzip) is read once into a spool. A small spool
//! stays in memory, and a large one moves to a temporary file.

use crate::DataError;
use bytes::Bytes;
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A spool that grows past this size in bytes moves to a temporary file.
const IN_MEMORY: usize = 512 * 1024 * 1024;

/// Bytes that can be read at any place.
#[derive(Debug)]
pub(super) enum Store {
    Memory(Bytes),
    /// A file with its length in bytes. The lock admits one reader at a time, because each seeks
    /// first.
    File(Mutex<File>, u64),
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let error = |e: io::Error| DataError::io(path, &e);
        let file = File::open(path).map_err(error)?;
        let meta = file.metadata().map_err(error)?;
        if !meta.is_file() {
            return Err(DataError::file(path, "is not a file; name one"));
        }
        Ok(Store::File(Mutex::new(file), meta.len()))
    }

    pub(super) fn length(&self) -> u64 {
        match self {
            Store::Memory(bytes) => bytes.len() as u64,
            Store::File(_, length) => *length,
        }
    }

    /// Fills `into` with the bytes at this place.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            Store::Memory(bytes) => {
                let start = usize::try_from(at).ok();
                let range = start.and_then(|start| Some(start..start.checked_add(into.len())?));
                let found = range.and_then(|range| bytes.get(range));
                into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Store::File(file, _) => {
                // Each reader seeks before it reads, so a reader that panicked leaves nothing
                // wrong.
                let mut file = file.lock();
                file.seek(SeekFrom::Start(at))?;
                file.read_exact(into)
            }
        }
    }
}

/// Collects bytes for a store.
pub(super) struct Spool {
    memory: Vec<u8>,
    file: Option<BufWriter<File>>,
    length: u64,
    limit: usize,
}

impl Spool {
    pub(super) fn new() -> Self {
        Spool::with_limit(IN_MEMORY)
    }

    pub(super) fn with_limit(limit: usize) -> Self {
        Spool { memory: Vec::new(), file: None, length: 0, limit }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.length += bytes.len() as u64;
        if self.file.is_none() && self.memory.len() + bytes.len() > self.limit {
            let file = tempfile::tempfile().map_err(no_room)?;
            let mut file = BufWriter::new(file);
            file.write_all(&std::mem::take(&mut self.memory)).map_err(no_room)?;
            self.file = Some(file);
        }
        match &mut self.file {
            Some(file) => file.write_all(bytes).map_err(no_room),
            None => {
                self.memory.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    pub(super) fn finish(self) -> Result<Store, DataError> {
        match self.file {
            Some(file) => {
                let file = file.into_inner().map_err(|e| no_room(e.into_error()))?;
                Ok(Store::File(Mutex::new(file), self.length))
            }
            None => Ok(Store::Memory(self.memory.into())),
        }
    }
}

fn no_room(e: io::Error) -> DataError {
    let hint = "data that is too large for memory is kept there; TMPDIR names another folder";
    DataError::file(&std::env::temp_dir(), format!("cannot be written to: {e}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_reads_the_same_from_memory_and_from_a_file() {
        let bytes: Vec<u8> = (0..=255).collect();
        for limit in [0, 100, 1000] {
            let mut spool = Spool::with_limit(limit);
            bytes.chunks(7).for_each(|part| spool.write(part).unwrap());
            assert_eq!(spool.length(), 256);
            let store = spool.finish().unwrap();
            assert_eq!(matches!(store, Store::Memory(_)), limit == 1000);
            let mut part = [0; 20];
            store.read(200, &mut part).unwrap();
            assert_eq!((&part[..], store.length()), (&bytes[200..220], 256));
            assert!(
                store.read(240, &mut part).is_err() && store.read(u64::MAX, &mut part).is_err()
            );
        }
    }
}
