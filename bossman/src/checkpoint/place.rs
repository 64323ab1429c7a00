//! Where checkpoints are: a folder of this machine, or of an object store.

use super::cloud;
use crate::BossManError;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::{Error, ListResult, ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is larger is sent in parts of this size.
const PART: u64 = 8 << 20;
/// So many parts are on their way at once.
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

    /// Whether it is certain that there is no such file.
    pub(super) async fn is_missing(&self, name: &str) -> bool {
        matches!(self.store.head(&Name::from(name)).await, Err(Error::NotFound { .. }))
    }

    /// A file of at most so many bytes.
    pub(super) async fn get(&self, name: &str, most: u64) -> Result<Bytes, BossManError> {
        let place = Name::from(name);
        let wrong = |e| match e {
            Error::NotFound { .. } => self.wrong(name, "is missing"),
            e => self.wrong(name, e),
        };
        let found = self.store.get(&place).await.map_err(wrong)?;
        if found.meta.size > most {
            let size = found.meta.size;
            return Err(self.wrong(name, format!("is damaged: it has {size} bytes, {most} at most are expected")));
        }
        found.bytes().await.map_err(wrong)
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
        let mut parts = WriteMultipart::new_with_chunk_size(self.store.put_multipart(place).await?, PART as usize);
        for from in (0..bytes.len()).step_by(PART as usize) {
            if let Err(error) = parts.wait_for_capacity(PARTS).await {
                // What is up would stay there, unseen.
                parts.abort().await.ok();
                return Err(error);
            }
            parts.put(bytes.slice(from..bytes.len().min(from + PART as usize)));
        }
        parts.finish().await.map(drop)
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

    /// What is wrong with a file of it.
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
