//! The place of checkpoints: a folder of this machine, or of an object store.

use super::local_file::{Content, LocalFile};
use super::remote_store;
use super::store_answers;
use crate::{data::disk, BossManError};
use bytes::Bytes;
use futures_util::{stream, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::{Error, ListResult, ObjectStore, ObjectStoreExt, PutPayload};
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The size of the parts of a large file.
const PART_BYTES: u64 = 8 << 20;
/// The number of parts in flight at once.
const PARALLEL_PARTS: usize = 4;

/// A folder.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    store: Arc<dyn ObjectStore>,
    /// The path or URL as the user wrote it.
    named: String,
    /// The path, if the folder is on this machine.
    local: Option<PathBuf>,
    /// The waits before each further attempt to read. Clients of object stores have their own.
    waits: &'static [Duration],
}

impl Folder {
    /// Opens a folder by its path or URL. Creates a missing local folder if `make` is set.
    pub(super) fn open(named: &str, make: bool) -> Result<Self, BossManError> {
        let local = named.strip_prefix("file://").or((!named.contains("://")).then_some(named));
        let (store, waits): (Arc<dyn ObjectStore>, &'static [Duration]) = match local {
            Some(path) => (Arc::new(of_this_machine(Path::new(path), make)?), disk::WAITS),
            None => (remote_store::open(named)?, &[]),
        };
        Ok(Folder { store, named: named.to_string(), local: local.map(PathBuf::from), waits })
    }

    /// A folder of any store.
    #[cfg(test)]
    pub(super) fn of(store: Arc<dyn ObjectStore>, named: &str, waits: &'static [Duration]) -> Self {
        Folder { store, named: named.to_string(), local: None, waits }
    }

    /// The path or URL as the user wrote it.
    pub(super) fn named(&self) -> &str {
        &self.named
    }

    /// The path of a file in it. If it is not on this machine, only for messages.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.local.as_deref().unwrap_or(Path::new(&self.named)).join(name)
    }

    /// The path, if the folder is on this machine.
    pub(super) fn local(&self) -> Option<&Path> {
        self.local.as_deref()
    }

    /// Whether it is on this machine.
    pub(super) fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// The folders in it whose names are `ours`.
    ///
    /// # Errors
    /// The list, or a folder in it, cannot be read.
    pub(super) async fn folders(
        &self,
        ours: fn(&str) -> bool,
    ) -> Result<Vec<String>, BossManError> {
        let cannot =
            |e: &dyn ToString| self.file_error("", format!("cannot be listed: {}", e.to_string()));
        if let Some(path) = &self.local {
            let list = || {
                let path = path.clone();
                async {
                    tokio::task::spawn_blocking(move || folders_of_this_machine(&path, ours))
                        .await?
                }
            };
            return disk::retry(self.waits, list).await.map_err(|e| cannot(&e));
        }
        let list = || self.store.list_with_delimiter(None);
        let list = || store_answers::answered(list);
        let found: ListResult = disk::retry(self.waits, list).await.map_err(|e| cannot(&e))?;
        let names = found.common_prefixes.iter().filter_map(|name| name.filename());
        Ok(names.filter(|name| ours(name)).map(str::to_string).collect())
    }

    /// Whether a folder in it has no files. Some object stores list such folders.
    pub(super) async fn is_empty(&self, name: &str) -> Result<bool, BossManError> {
        if self.is_local() {
            return Ok(false);
        }
        let first = || async { self.store.list(Some(&Name::from(name))).try_next().await };
        let cannot = |e| self.file_error(name, format!("cannot be listed: {e}"));
        Ok(store_answers::answered(first).await.map_err(cannot)?.is_none())
    }

    /// Reads a file of at most `most` bytes.
    ///
    /// # Errors
    /// The store neither sends the file nor reports that it is missing.
    pub(super) async fn get(&self, name: &str, most: u64) -> Result<Content<Bytes>, BossManError> {
        let place = Name::from(name);
        let attempt = || async {
            match self.get_once(&place, most).await {
                Err(error) if says_missing(&error) => Ok(Content::Missing),
                content => content,
            }
        };
        let cannot = |e| self.file_error(name, format!("cannot be read: {e}"));
        disk::retry(self.waits, attempt).await.map_err(cannot)
    }

    /// Hashes a file of at most `most` bytes. A file of an object store is copied to this machine.
    ///
    /// # Errors
    /// As for [`Folder::get`], or the copy cannot be written.
    pub(super) async fn hashed(
        &self,
        name: &str,
        most: u64,
    ) -> Result<Content<LocalFile>, BossManError> {
        if self.local.is_none() {
            let bytes = match self.get(name, most).await? {
                Content::Whole(bytes) => bytes,
                Content::Missing => return Ok(Content::Missing),
                Content::TooLarge(size) => return Ok(Content::TooLarge(size)),
            };
            let copy = tokio::task::spawn_blocking(move || LocalFile::copy(&bytes)).await;
            let cannot = |e: &dyn Display| {
                let folder = std::env::temp_dir();
                let to = format!("cannot be copied to {} (TMPDIR): {e}", folder.display());
                self.file_error(name, to)
            };
            let copy = copy.map_err(|e| cannot(&e))?.map_err(|e| cannot(&e))?;
            return Ok(Content::Whole(copy));
        }
        let path = self.path(name);
        let attempt = || async {
            let path = path.clone();
            let hash = tokio::task::spawn_blocking(move || LocalFile::hash(&path, most)).await?;
            match hash {
                Err(e) if is_missing(&e) => Ok(Content::Missing),
                hash => hash,
            }
        };
        let cannot = |e: io::Error| self.file_error(name, format!("cannot be read: {e}"));
        disk::retry(self.waits, attempt).await.map_err(cannot)
    }

    async fn get_once(&self, place: &Name, most: u64) -> Result<Content<Bytes>, Error> {
        let found = self.store.get(place).await?;
        match found.meta.size {
            size if size > most => Ok(Content::TooLarge(size)),
            _ => found.bytes().await.map(Content::Whole),
        }
    }

    /// Writes a file, as a whole or not at all.
    pub(super) async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), BossManError> {
        let place = Name::from(name);
        // On this machine parts have no advantage.
        match self.local.is_none() && bytes.len() as u64 > PART_BYTES {
            false => self
                .store
                .put(&place, PutPayload::from(bytes))
                .await
                .map(drop)
                .map_err(|e| self.file_error(name, e)),
            true => self.put_parts(name, &place, bytes.into()).await,
        }
    }

    async fn put_parts(&self, name: &str, place: &Name, bytes: Bytes) -> Result<(), BossManError> {
        let mut upload =
            self.store.put_multipart(place).await.map_err(|e| self.file_error(name, e))?;
        let starts = (0..bytes.len()).step_by(PART_BYTES as usize);
        let parts =
            starts.map(|start| bytes.slice(start..bytes.len().min(start + PART_BYTES as usize)));
        let sent = stream::iter(parts.map(|part| upload.put_part(part.into())));
        let sent = sent.buffer_unordered(PARALLEL_PARTS).try_for_each(|()| async { Ok(()) }).await;
        let put = match sent {
            Ok(()) => upload.complete().await.map(drop),
            Err(error) => Err(error),
        };
        let Err(error) = put else { return Ok(()) };
        // The store would keep the parts, hidden and paid for.
        match upload.abort().await {
            Ok(()) | Err(Error::NotFound { .. }) => Err(self.file_error(name, error)),
            Err(left) => Err(self.file_error(
                name,
                format!("{error}; and the parts sent cannot be deleted: {left}"),
            )),
        }
    }

    /// Deletes a file, if it exists.
    pub(super) async fn delete(&self, name: &str) -> Result<(), BossManError> {
        match self.store.delete(&Name::from(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.file_error(name, e)),
        }
    }

    /// Deletes all files in a folder of it.
    pub(super) async fn delete_folder(&self, name: &str) -> Result<(), BossManError> {
        if self.local.is_none() {
            let files = self.store.list(Some(&Name::from(name))).map_ok(|file| file.location);
            let files: Vec<Name> =
                files.try_collect().await.map_err(|e| self.file_error(name, e))?;
            for file in files {
                self.delete(file.as_ref()).await?;
            }
            return Ok(());
        }
        // This includes the unfinished files of a killed program, which the store does not list.
        let folder = self.path(name);
        let gone = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
        match gone.map_err(|e| self.file_error(name, e))? {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(BossManError::io(&self.path(name), &e))
            }
            _ => Ok(()),
        }
    }

    /// Makes an error about a file in it.
    pub(super) fn file_error(&self, name: &str, problem: impl ToString) -> BossManError {
        // Messages of stores have several lines.
        let problem = problem.to_string();
        let problem = problem.split_whitespace().collect::<Vec<_>>().join(" ");
        let problem = match self.is_local() {
            true => problem,
            false => store_answers::with_hint(&problem),
        };
        BossManError::file(&self.path(name), problem)
    }
}

fn of_this_machine(path: &Path, make: bool) -> Result<LocalFileSystem, BossManError> {
    if make {
        std::fs::create_dir_all(path).map_err(|e| BossManError::io(path, &e))?;
    }
    match disk::metadata(path).map_err(|e| BossManError::io(path, &e))? {
        Some(there) if there.is_dir() => {}
        _ => return Err(BossManError::file(path, "there is no such folder")),
    }
    // A file that was written survives a loss of power.
    let store = LocalFileSystem::new_with_prefix(path).map_err(|e| BossManError::file(path, e))?;
    Ok(store.with_automatic_cleanup(true).with_fsync(true))
}

/// Whether a store reports that there is no such file. Every other error leaves that open.
fn says_missing(error: &Error) -> bool {
    let mut causes =
        std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| {
            error.source()
        });
    // On this machine a part of the path can be a file.
    let is_below_a_file = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::NotADirectory)
    };
    matches!(error, Error::NotFound { .. }) || causes.any(is_below_a_file)
}

/// Whether this machine reports that there is no such file. A part of its path can be a file.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The folders in a folder whose names are `ours`. The store's own list leaves out folders that it
/// cannot read.
fn folders_of_this_machine(path: &Path, ours: fn(&str) -> bool) -> io::Result<Vec<String>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().filter(|name| ours(name)).map(str::to_string)
        else {
            continue;
        };
        match disk::metadata(&entry.path())? {
            Some(there) if there.is_dir() => folders.push(name),
            None if entry.path().is_symlink() => {
                let problem = format!("{name} is a link to a folder that is not there");
                return Err(io::Error::new(io::ErrorKind::NotFound, problem));
            }
            _ => {}
        }
    }
    Ok(folders)
}
