//! Where checkpoints are: a folder of this machine, or of an object store.

use super::cloud;
use crate::BossManError;
use bytes::Bytes;
use futures_util::{stream, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::{Error, ListResult, ObjectStore, ObjectStoreExt, PutPayload};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What is larger is sent in parts of this size.
const PART: u64 = 8 << 20;
/// The pauses between tries to read. Object stores repeat requests by themselves, too.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];
/// The number of parts that are on their way at once.
const PARTS: usize = 4;

/// A folder.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    store: Arc<dyn ObjectStore>,
    /// As it was named.
    named: String,
    /// Set on this machine.
    local: Option<PathBuf>,
}

impl Folder {
    /// This folder, by its path or URL; one of this machine is made where it is missing and `make` says so.
    pub(super) fn open(named: &str, make: bool) -> Result<Self, BossManError> {
        let local = named.strip_prefix("file://").or((!named.contains("://")).then_some(named));
        let store = match local {
            Some(path) => Arc::new(of_this_machine(Path::new(path), make)?),
            None => cloud::open(named)?,
        };
        Ok(Folder { store, named: named.to_string(), local: local.map(PathBuf::from) })
    }

    /// A folder of any store, for tests.
    #[cfg(test)]
    pub(super) fn of(store: Arc<dyn ObjectStore>) -> Self {
        Folder { store, named: "test".into(), local: None }
    }

    /// As it was named.
    pub(super) fn named(&self) -> &str {
        &self.named
    }

    /// What to call a file of it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.local.as_deref().unwrap_or(Path::new(&self.named)).join(name)
    }

    /// The folders in it.
    pub(super) async fn folders(&self) -> Result<Vec<String>, BossManError> {
        let found: ListResult = self.store.list_with_delimiter(None).await.map_err(|e| self.wrong("", e))?;
        Ok(found.common_prefixes.iter().filter_map(|name| name.filename().map(str::to_string)).collect())
    }

    /// Whether nothing is in a folder of it, which some object stores list all the same.
    pub(super) async fn is_empty(&self, name: &str) -> Result<bool, BossManError> {
        let first = async { self.store.list(Some(&Name::from(name))).try_next().await };
        Ok(self.local.is_none() && first.await.map_err(|e| self.wrong(name, e))?.is_none())
    }

    /// Whether the store says that there is no such file.
    ///
    /// # Errors
    /// The store does not answer, so nothing is known.
    pub(super) async fn is_missing(&self, name: &str) -> Result<bool, BossManError> {
        let place = Name::from(name);
        match self.retried(|| self.store.head(&place)).await {
            Ok(_) => Ok(false),
            Err(Error::NotFound { .. }) => Ok(true),
            Err(e) => Err(self.unreadable(name, e)),
        }
    }

    /// Reads a file of at most `most` bytes.
    ///
    /// # Errors
    /// [`BossManError::Damaged`] if the file is missing or longer, [`BossManError::File`] if it could
    /// not be read after retries.
    pub(super) async fn get(&self, name: &str, most: u64) -> Result<Bytes, BossManError> {
        let place = Name::from(name);
        let read = || async {
            let found = self.store.get(&place).await?;
            match found.meta.size {
                size if size > most => Ok(Err(size)),
                _ => found.bytes().await.map(Ok),
            }
        };
        match self.retried(read).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(size)) => {
                let problem = format!("is damaged: it has {size} bytes, {most} at most are expected");
                Err(self.damaged(name, problem))
            }
            Err(Error::NotFound { .. }) => Err(self.damaged(name, "is missing")),
            Err(e) => Err(self.unreadable(name, e)),
        }
    }

    /// Repeats a read that failed. A missing file is an answer, not a failure.
    async fn retried<T, F: Future<Output = Result<T, Error>>>(&self, read: impl Fn() -> F) -> Result<T, Error> {
        let mut pauses = PAUSES.into_iter();
        loop {
            match (read().await, pauses.next()) {
                (Err(e), Some(pause)) if !matches!(e, Error::NotFound { .. }) => {
                    tracing::debug!(error = %e, "a read of a checkpoint failed and is repeated");
                    tokio::time::sleep(pause).await;
                }
                (result, _) => return result,
            }
        }
    }

    /// Writes a file, which is there as a whole or not at all.
    pub(super) async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), BossManError> {
        let place = Name::from(name);
        // On this machine a file in parts would be written no differently.
        let put = match self.local.is_none() && bytes.len() as u64 > PART {
            false => self.store.put(&place, PutPayload::from(bytes)).await.map(drop),
            true => self.put_parts(&place, bytes.into()).await,
        };
        put.map_err(|e| self.wrong(name, e))
    }

    async fn put_parts(&self, place: &Name, bytes: Bytes) -> Result<(), Error> {
        let mut upload = self.store.put_multipart(place).await?;
        let from = (0..bytes.len()).step_by(PART as usize);
        let parts = from.map(|from| bytes.slice(from..bytes.len().min(from + PART as usize)));
        let parts: Vec<_> = parts.map(|part| upload.put_part(part.into())).collect();
        let sent = stream::iter(parts).buffer_unordered(PARTS).try_collect::<Vec<()>>().await;
        let whole = match sent {
            Ok(_) => upload.complete().await.map(drop),
            Err(error) => Err(error),
        };
        if whole.is_err() {
            // Parts that stay are invisible, and are paid for.
            upload.abort().await.ok();
        }
        whole
    }

    /// Deletes a file, or nothing where there is none.
    pub(super) async fn delete(&self, name: &str) -> Result<(), BossManError> {
        match self.store.delete(&Name::from(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.wrong(name, e)),
        }
    }

    /// Deletes all that is in a folder of it.
    pub(super) async fn delete_folder(&self, name: &str) -> Result<(), BossManError> {
        if self.local.is_none() {
            let files = self.store.list(Some(&Name::from(name))).map_ok(|file| file.location);
            let files: Vec<Name> = files.try_collect().await.map_err(|e| self.wrong(name, e))?;
            for file in files {
                self.delete(file.as_ref()).await?;
            }
            return Ok(());
        }
        // With what a program that was killed had begun to write, which the store does not list.
        let folder = self.path(name);
        let gone = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
        match gone.map_err(|e| self.wrong(name, e))? {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(BossManError::io(&self.path(name), &e)),
            _ => Ok(()),
        }
    }

    /// A file that could not be read. It may be whole.
    fn unreadable(&self, name: &str, problem: impl ToString) -> BossManError {
        let problem = problem.to_string();
        self.wrong(name, format!("cannot be read, so it may be whole: {problem}; try again when the store answers"))
    }

    /// A file that was read, or is proven to be missing, and is not what was written.
    pub(super) fn damaged(&self, name: &str, problem: impl ToString) -> BossManError {
        self.wrong(name, problem).into_damage()
    }

    /// A problem with a file of it.
    pub(super) fn wrong(&self, name: &str, problem: impl ToString) -> BossManError {
        // What stores say has several lines.
        let problem = problem.to_string();
        BossManError::file(&self.path(name), problem.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

fn of_this_machine(path: &Path, make: bool) -> Result<LocalFileSystem, BossManError> {
    if make {
        std::fs::create_dir_all(path).map_err(|e| BossManError::io(path, &e))?;
    }
    if !path.is_dir() {
        return Err(BossManError::file(path, "there is no such folder"));
    }
    // What is said to be written survives that the machine loses power.
    let store = LocalFileSystem::new_with_prefix(path).map_err(|e| BossManError::file(path, e))?;
    Ok(store.with_automatic_cleanup(true).with_fsync(true))
}
