//! Checkpoints in a folder, of this machine or of an object store.

use super::folder::Folder;
use super::layout::WEIGHTS;
use super::local_file::{Content, LocalFile};
use super::manifest::{
    folder_of_step, hash, step_of_folder, FileEntry, Manifest, ManifestError, RunRecord, DAMAGED,
};
use super::policy::{rate, KeepBest, Policy};
use super::read_error::ReadError;
use super::stored_state::StoredState;
use super::training_state::TrainingState;
use super::verified_steps::VerifiedSteps;
use crate::events::Events;
use crate::runs::FolderLock;
use crate::weights::tensor_headers::TensorHeaders;
use crate::{data::disk, weights::safetensors_files, BossManError, Score, StateDict};
use bytes::Bytes;
use futures_util::{stream, StreamExt, TryStreamExt};
use parking_lot::{Mutex, MutexGuard};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) const MANIFEST: &str = "manifest.json";
/// A manifest has a line for each file.
const MAX_MANIFEST: u64 = 64 << 20;
/// The files of an object store that are in memory at once.
const REMOTE_FILES_AT_ONCE: usize = 2;

/// The checkpoints of a run.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    pub(super) folder: Folder,
    events: Events,
    /// Clones of this object share it.
    known: Arc<Mutex<VerifiedSteps>>,
    /// Held while a run writes here.
    lock: Option<Arc<FolderLock>>,
}

/// A checkpoint, or the remains of one.
#[derive(Debug)]
pub struct CheckpointEntry {
    /// Its folder.
    pub name: String,
    /// Training steps done.
    pub step: u64,
    /// The size of its files according to the manifest, or why the manifest cannot be used. The
    /// files are not read.
    pub bytes: Result<u64, ReadError>,
    pub(crate) manifest: Option<Manifest>,
}

impl CheckpointEntry {
    /// When it was written, if its manifest tells that.
    pub fn time(&self) -> Option<SystemTime> {
        let seconds = self.manifest.as_ref()?.time?;
        UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    }

    /// The score of its weights on the validation data, if they were validated.
    pub fn score(&self) -> Option<Score> {
        let validation = self.manifest.as_ref()?.run.validation?;
        (validation.step == self.step).then(|| validation.score())
    }

    /// Whether it has no manifest: it is being written, or was never finished.
    pub fn is_unfinished(&self) -> bool {
        matches!(self.bytes, Err(ReadError::Unfinished(_)))
    }

    /// Whether its manifest cannot be read. It may be whole.
    pub fn is_unreadable(&self) -> bool {
        matches!(self.bytes, Err(ReadError::Unreadable(_)))
    }
}

impl Checkpoints {
    /// Opens a folder of checkpoints: a path, or the URL of a folder in an object store (`s3://`,
    /// `gs://`, `az://`). Creates a missing local folder if `make` is set. A folder in a store need
    /// not exist.
    ///
    /// # Errors
    /// The folder cannot be created or read, or the kind of the URL is unknown.
    pub fn open(dir: &str, make: bool) -> Result<Self, BossManError> {
        Ok(Self::of(Folder::open(dir, make)?))
    }

    pub(super) fn of(folder: Folder) -> Self {
        Checkpoints { folder, events: Events::default(), known: Arc::default(), lock: None }
    }

    /// The path or URL as the user wrote it.
    pub fn named(&self) -> &str {
        self.folder.named()
    }

    /// Sets the observers of warnings. By default a console shows them.
    #[must_use]
    pub fn events(mut self, events: Events) -> Self {
        self.events = events;
        self
    }

    /// Locks a folder of this machine until this object and its clones are dropped. Another run
    /// would take these checkpoints for its own, and delete them.
    ///
    /// # Errors
    /// Another process trains in the folder, or the lock cannot be written.
    pub(crate) fn lock(&mut self) -> Result<(), BossManError> {
        let lock = self.folder.local().map(FolderLock::take).transpose()?;
        self.lock = lock.map(Arc::new);
        Ok(())
    }

    /// All checkpoints, by ascending steps. Each states whether its manifest can be used.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn list(&self) -> Result<Vec<CheckpointEntry>, BossManError> {
        let mut listed = Vec::new();
        // Folders with other names are not checkpoints.
        for name in self.folder.folders(|name| step_of_folder(name).is_some()).await? {
            let Some(step) = step_of_folder(&name) else { continue };
            let (bytes, manifest) = match self.manifest(&name).await {
                Ok(manifest) => (Ok(manifest.bytes()), Some(manifest)),
                Err(ReadError::Unfinished(_)) if self.folder.is_empty(&name).await? => continue,
                Err(error) => (Err(error), None),
            };
            listed.push(CheckpointEntry { name, step, bytes, manifest });
        }
        listed.sort_by_key(|listed| listed.step);
        Ok(listed)
    }

    /// The rate of the best checkpoint that is there.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) async fn best_rate(&self, by: KeepBest) -> Result<Option<f64>, BossManError> {
        let listed = self.list().await?;
        let manifests = listed.iter().filter_map(|listed| listed.manifest.as_ref());
        let rates = manifests.filter_map(|of| rate(&of.run, of.counters.step, by));
        Ok(rates.max_by(f64::total_cmp))
    }

    /// The step of the newest checkpoint whose manifest is whole.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) async fn newest_step(&self) -> Result<Option<u64>, BossManError> {
        let listed = self.list().await?;
        Ok(listed.iter().rfind(|listed| listed.bytes.is_ok()).map(|listed| listed.step))
    }

    /// Writes a state of training from [`crate::BossMan::checkpoint`]. Replaces a checkpoint of the
    /// same step.
    ///
    /// # Errors
    /// A file cannot be written. There is then no checkpoint of this step and no file of it.
    pub async fn save(&self, state: TrainingState) -> Result<(), BossManError> {
        self.write(state, RunRecord::default()).await.map(drop)
    }

    /// The last whole state, for [`crate::BossMan::restore`]. `None` if no checkpoint is whole.
    /// Warnings name later checkpoints that are damaged or were never finished.
    ///
    /// # Errors
    /// The folder, or a checkpoint after the last whole one, cannot be read.
    pub async fn last(&self) -> Result<Option<TrainingState>, BossManError> {
        match self.last_whole().await? {
            Some(state) => self.load(state).await.map(Some),
            None => Ok(None),
        }
    }

    async fn load(&self, state: StoredState) -> Result<TrainingState, BossManError> {
        let loaded = tokio::task::spawn_blocking(move || state.load()).await;
        loaded.map_err(|e| self.folder.file_error("", format!("cannot be loaded: {e}")))?
    }

    /// Compares each file of a checkpoint with its manifest.
    ///
    /// # Errors
    /// A file is missing or damaged, or cannot be read. The error names it.
    pub(crate) async fn compared(&self, name: &str) -> Result<StoredState, ReadError> {
        let manifest = self.manifest(name).await?;
        let compare = |file: FileEntry| self.compared_file(name, file);
        let files = stream::iter(manifest.files.clone()).map(compare);
        let files = files.buffered(self.files_at_once()).try_collect::<Vec<_>>().await?;
        StoredState::of(manifest, files).map_err(|(file, problem)| {
            ReadError::Unreadable(self.folder.file_error(&format!("{name}/{file}"), problem))
        })
    }

    /// The number of files that are compared at once. A file of an object store is in memory then.
    fn files_at_once(&self) -> usize {
        match self.folder.is_local() {
            true => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            false => REMOTE_FILES_AT_ONCE,
        }
    }

    /// Compares every file of a checkpoint with its manifest.
    ///
    /// # Errors
    /// A file is missing or damaged, or cannot be read. The error names it.
    pub async fn verify(&self, name: &str) -> Result<(), ReadError> {
        self.compared(name).await.map(drop)
    }

    /// The state to resume from: that of the checkpoint of this name, or of the last whole one.
    /// Warnings name later checkpoints that are damaged or were never finished.
    ///
    /// # Errors
    /// No checkpoint is whole, the named one is damaged or not the last, or one that may be the
    /// last whole one cannot be read.
    pub(crate) async fn resume(&self, name: Option<&str>) -> Result<StoredState, BossManError> {
        let listed = self.list().await?;
        if let Some(name) = name {
            let is_meant = |of: &CheckpointEntry| of.name == name || name.parse() == Ok(of.step);
            let place = listed.iter().position(is_meant);
            let names =
                || listed.iter().map(|listed| listed.name.as_str()).collect::<Vec<_>>().join(", ");
            let place = place.ok_or_else(|| {
                BossManError::Usage(format!(
                    "{}: there is no checkpoint `{name}`; it has {}",
                    self.folder.named(),
                    names()
                ))
            })?;
            let name = listed[place].name.as_str();
            if let Some(later) = listed.get(place + 1) {
                return Err(BossManError::Usage(format!(
                    "{}: {} and later would be mixed up with what follows {name}; `bossman \
                     checkpoint prune {} --after {name}` deletes them",
                    self.folder.named(),
                    later.name,
                    self.folder.named()
                )));
            }
            let found = self.compared(name).await?;
            self.known().note_whole(found.counters.step);
            return Ok(found);
        }
        let none = || {
            BossManError::Usage(format!(
                "{}: there is no whole checkpoint to resume from",
                self.folder.named()
            ))
        };
        self.last_whole().await?.ok_or_else(none)
    }

    /// The last whole checkpoint, if any. Warnings name later ones that are damaged or were never
    /// finished.
    ///
    /// # Errors
    /// The folder, or a checkpoint after the last whole one, cannot be read. A failed read does not
    /// prove that an older one is the last.
    pub(crate) async fn last_whole(&self) -> Result<Option<StoredState>, BossManError> {
        let listed = self.list().await?;
        for (place, CheckpointEntry { name, step, .. }) in listed.iter().enumerate().rev() {
            let problem = match self.compared(name).await {
                Ok(found) => {
                    self.known().note_whole(*step);
                    return Ok(Some(found));
                }
                Err(ReadError::Unreadable(error)) => {
                    let before = place.checked_sub(1).and_then(|before| listed.get(before));
                    let how = before.map(|before| {
                        format!(
                            " with `bossman checkpoint prune {} --after {}`",
                            self.folder.named(),
                            before.name
                        )
                    });
                    let advice = format!(
                        "; {name} may be whole, so no older checkpoint is used: try again when it \
                         can be read, or delete it{}",
                        how.unwrap_or_default()
                    );
                    return Err(with(error, &advice));
                }
                Err(ReadError::Damaged(error) | ReadError::Unfinished(error)) => error,
            };
            self.known().note_useless(*step);
            let text = format!("{problem}; looking for the checkpoint before {name}");
            self.events.warn_at(*step, text);
        }
        Ok(None)
    }

    /// The step of the newest checkpoint that this process has written or resumed from.
    pub(crate) fn newest_known(&self) -> Option<u64> {
        self.known().newest_whole()
    }

    /// Deletes old checkpoints after the one of this step was written: those that the policy does
    /// not keep, unfinished ones of earlier steps, and those that this process found damaged or
    /// unfinished. Never deletes a checkpoint that cannot be read, or a later one that this process
    /// did not try to read.
    pub(crate) async fn prune(
        &self,
        policy: &Policy,
        step: u64,
    ) -> Result<Vec<String>, BossManError> {
        let listed = self.list().await?;
        let there = listed
            .iter()
            .filter(|listed| listed.step <= step && !self.known().is_useless(listed.step));
        let there: Vec<Manifest> = there.filter_map(|listed| listed.manifest.clone()).collect();
        let superfluous = policy.superfluous(&there);
        let mut deleted = Vec::new();
        for CheckpointEntry { name, step: of, bytes, .. } in listed {
            let is_useless = self.known().is_useless(of);
            let goes = match bytes {
                Ok(_) => is_useless || superfluous.contains(&of),
                Err(ReadError::Damaged(_)) => is_useless,
                Err(ReadError::Unfinished(_)) => is_useless || of < step,
                Err(ReadError::Unreadable(_)) => false,
            };
            if goes {
                self.remove(&name).await?;
                deleted.push(name);
            }
        }
        Ok(deleted)
    }

    /// Deletes the files of an aborted write of this step, unless it was complete. Returns whether
    /// it was incomplete.
    ///
    /// # Errors
    /// A file cannot be deleted.
    pub(crate) async fn clear(&self, step: u64) -> Result<bool, BossManError> {
        let aborted = !self.known().is_whole(step);
        if aborted {
            self.remove(&folder_of_step(step)).await?;
        }
        Ok(aborted)
    }

    /// Deletes a checkpoint, or the remains of one. The manifest goes first, so that half a
    /// checkpoint is never taken for a whole one.
    ///
    /// # Errors
    /// A file cannot be deleted.
    pub async fn remove(&self, name: &str) -> Result<(), BossManError> {
        self.folder.delete(&format!("{name}/{MANIFEST}")).await?;
        self.folder.delete_folder(name).await?;
        if let Some(step) = step_of_folder(name) {
            self.known().note_gone(step);
        }
        Ok(())
    }

    async fn manifest(&self, name: &str) -> Result<Manifest, ReadError> {
        let place = format!("{name}/{MANIFEST}");
        let wrong = |problem: String| self.folder.file_error(&place, problem);
        match self.folder.get(&place, MAX_MANIFEST).await.map_err(ReadError::Unreadable)? {
            Content::Whole(bytes) => Manifest::parse(&bytes, name).map_err(|unfit| match unfit {
                ManifestError::Damaged(problem) => ReadError::Damaged(wrong(problem)),
                ManifestError::UnknownVersion(problem) => ReadError::Unreadable(wrong(problem)),
            }),
            Content::Missing => Err(ReadError::Unfinished(wrong("is missing".into()))),
            Content::TooLarge(size) => {
                Err(ReadError::Damaged(wrong(too_large(size, MAX_MANIFEST))))
            }
        }
    }

    /// Compares a file that the manifest names, and reads the header of its tensors.
    async fn compared_file(
        &self,
        name: &str,
        entry: FileEntry,
    ) -> Result<(LocalFile, TensorHeaders), ReadError> {
        let place = format!("{name}/{}", entry.name);
        let wrong = |problem: &str| self.folder.file_error(&place, problem);
        let file = match self.folder.hashed(&place, entry.bytes).await {
            Ok(Content::Whole(file)) => file,
            Ok(Content::TooLarge(size)) => {
                return Err(ReadError::Damaged(wrong(&too_large(size, entry.bytes))))
            }
            Ok(Content::Missing) => return Err(self.missing(name, &wrong).await),
            Err(error) => return Err(ReadError::Unreadable(error)),
        };
        if file.bytes != entry.bytes || file.sha256 != entry.sha256 {
            return Err(ReadError::Damaged(wrong(DAMAGED)));
        }
        let read = tokio::task::spawn_blocking(move || {
            let headers = TensorHeaders::of_single_file(&file.path)?;
            let is_same = headers.stamps().all(|stamp| file.has_stamp(stamp));
            match is_same {
                true => Ok((file, headers)),
                false => Err(BossManError::Usage("changed while it was read".into())),
            }
        });
        let read = read.await.map_err(|e| wrong(&format!("cannot be read: {e}")));
        // The bytes are those that were written. So another program wrote them, or memory is too
        // small for them.
        read.and_then(|read| {
            read.map_err(|error| match error {
                BossManError::File { problem, .. } => wrong(&problem),
                error => wrong(&error.to_string()),
            })
        })
        .map_err(ReadError::Unreadable)
    }

    /// The error for a file that is missing, although its manifest existed a moment ago. If that is
    /// missing, too, the checkpoint is being deleted, or a disk is gone.
    async fn missing(&self, name: &str, wrong: &impl Fn(&str) -> BossManError) -> ReadError {
        match self.manifest(name).await {
            Ok(_) | Err(ReadError::Damaged(_)) => ReadError::Damaged(wrong("is missing")),
            Err(ReadError::Unfinished(_)) => {
                ReadError::Unreadable(wrong("is missing, and now also the manifest that named it"))
            }
            Err(unreadable) => unreadable,
        }
    }

    pub(super) fn known(&self) -> MutexGuard<'_, VerifiedSteps> {
        self.known.lock()
    }
}

/// Adds text to an error.
pub(super) fn with(error: BossManError, more: &str) -> BossManError {
    match error {
        BossManError::File { path, problem } => {
            BossManError::File { path, problem: format!("{problem}{more}") }
        }
        error => BossManError::Usage(format!("{error}{more}")),
    }
}

fn too_large(size: u64, most: u64) -> String {
    format!("is damaged: it has {size} bytes, {most} at most are expected")
}

/// Whether a folder is a checkpoint's.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn is_checkpoint(folder: &Path) -> Result<bool, BossManError> {
    let path = folder.join(MANIFEST);
    disk::is_file(&path).map_err(|e| BossManError::io(&path, &e))
}

/// The weights in a checkpoint's folder.
pub(crate) fn load_weights(folder: &Path) -> Result<StateDict, BossManError> {
    let mut weights = StateDict::default();
    for file in weight_entries(folder)? {
        let path = folder.join(&file.name);
        let bytes = std::fs::read(&path).map_err(|e| BossManError::io(&path, &e))?;
        if hash(&bytes) != file.sha256 {
            return Err(BossManError::file(&path, DAMAGED));
        }
        safetensors_files::decode(&Bytes::from(bytes), &path)?
            .iter()
            .for_each(|(name, tensor)| weights.insert(name, tensor));
    }
    Ok(weights)
}

/// The headers of the weights in a checkpoint's folder. Their files are compared with the manifest,
/// and stay where they are.
pub(crate) fn weight_headers(folder: &Path) -> Result<TensorHeaders, BossManError> {
    let mut all = Vec::new();
    for entry in weight_entries(folder)? {
        let path = folder.join(&entry.name);
        let hashed = LocalFile::hash(&path, entry.bytes);
        let file = match hashed.map_err(|e| BossManError::io(&path, &e))? {
            Content::Whole(file) if file.sha256 == entry.sha256 => file,
            _ => return Err(BossManError::file(&path, DAMAGED)),
        };
        let headers = TensorHeaders::of_single_file(&path)?;
        if !headers.stamps().all(|stamp| file.has_stamp(stamp)) {
            let problem = "changed while it was read; start again, and let nothing write to it";
            return Err(BossManError::file(&path, problem));
        }
        all.push(headers);
    }
    Ok(TensorHeaders::joined(folder, all))
}

/// The files of weights that a checkpoint's manifest names.
fn weight_entries(folder: &Path) -> Result<Vec<FileEntry>, BossManError> {
    let (path, name) =
        (folder.join(MANIFEST), folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf()));
    let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = std::fs::read(&path).map_err(|e| BossManError::io(&path, &e))?;
    let manifest = Manifest::parse(&text, &name).map_err(|unfit| match unfit {
        ManifestError::Damaged(problem) | ManifestError::UnknownVersion(problem) => {
            BossManError::file(&path, problem)
        }
    })?;
    let mut files = manifest.files;
    files.retain(|file| file.name.split('/').next() == Some(WEIGHTS));
    Ok(files)
}
