//! Checkpoints in a folder, of this machine or of an object store.

use super::manifest::{hash, File, Manifest, Run, VERSION};
use super::place::Folder;
use super::policy::Policy;
use super::snapshot::State;
use crate::{output, weight_files, BossManError, StateDict};
use bytes::Bytes;
use serde::Deserialize;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tch::Tensor;

const MANIFEST: &str = "manifest.json";
/// A manifest has a line a file.
const MAX_MANIFEST: u64 = 64 << 20;
/// What a checkpoint's folder is called before its number of steps.
const PREFIX: &str = "step-";
/// Where the files lie of weights, and of what the optimizer keeps for them.
const WEIGHTS: &str = "weights";
const OPTIMIZER: &str = "optimizer";
const DAMAGED: &str = "is damaged: its content is not what was written";

/// The checkpoints of a run.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: Folder,
    /// The checkpoints that this run found damaged when it resumed. Only these, of later steps, are
    /// pruned.
    damaged: Arc<Mutex<BTreeSet<String>>>,
}

/// A checkpoint, or what is left of one.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its folder.
    pub name: String,
    /// Training steps done.
    pub step: u64,
    /// What its manifest says.
    pub condition: Condition,
    pub(crate) manifest: Option<Manifest>,
}

/// What the manifest of a checkpoint says of it. Its other files are not read for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its files have this many bytes in all.
    Whole(u64),
    /// It has no manifest: it is being written, or the writer was stopped.
    Begun,
    /// Its manifest is not what was written, for this reason.
    Damaged(String),
    /// Its manifest could not be read, for this reason. The checkpoint may be whole.
    Unreadable(String),
}

impl Checkpoints {
    /// Those in this folder, which is made where it is missing and `make` says so; by its path, or by the URL of a folder in an
    /// object store (`s3://`, `gs://`, `az://`), which need not be there.
    ///
    /// # Errors
    /// It cannot be made or read, or is a place of a kind that is not known.
    pub fn open(dir: &str, make: bool) -> Result<Self, BossManError> {
        Ok(Checkpoints::of(Folder::open(dir, make)?))
    }

    pub(super) fn of(folder: Folder) -> Self {
        Checkpoints { folder, damaged: Arc::default() }
    }

    /// All there are, by their steps, ascending.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn list(&self) -> Result<Vec<Listed>, BossManError> {
        let mut listed = Vec::new();
        for name in self.folder.folders().await? {
            let step = name.strip_prefix(PREFIX).and_then(|step| step.parse().ok());
            // What is named otherwise is somebody else's.
            let Some(step) = step.filter(|step| name_of(*step) == name) else { continue };
            let (condition, manifest) = match self.folder.is_missing(&format!("{name}/{MANIFEST}")).await {
                Ok(true) if self.folder.is_empty(&name).await? => continue,
                Ok(true) => (Condition::Begun, None),
                Ok(false) => match self.manifest(&name).await {
                    Ok(manifest) => (Condition::Whole(manifest.bytes()), Some(manifest)),
                    Err(error) if error.is_damage() => (Condition::Damaged(error.to_string()), None),
                    Err(error) => (Condition::Unreadable(error.to_string()), None),
                },
                Err(error) => (Condition::Unreadable(error.to_string()), None),
            };
            listed.push(Listed { name, step, condition, manifest });
        }
        listed.sort_by_key(|listed| listed.step);
        Ok(listed)
    }

    /// Writes a state of training, as [`crate::BossMan::checkpoint`] gives it. One of the same step is replaced.
    ///
    /// # Errors
    /// A file cannot be written; there is then no checkpoint of this step.
    pub async fn save(&self, state: State) -> Result<(), BossManError> {
        self.write(state, Run::default()).await.map(drop)
    }

    /// The last state that is whole, for [`crate::BossMan::restore`]; later ones that are not are named in warnings. Nothing
    /// where there is none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn last(&self) -> Result<Option<State>, BossManError> {
        Ok(self.last_whole().await?.map(|(state, _)| state))
    }

    /// Writes a state, its manifest last. One of the same step is replaced.
    ///
    /// # Errors
    /// A file cannot be written. Then there is no checkpoint of this step, and what was written of it
    /// is removed, so that the next one has room.
    pub(crate) async fn write(&self, state: State, run: Run) -> Result<Manifest, BossManError> {
        let name = name_of(state.counters.step);
        self.remove(&name).await?;
        let written = self.write_files(&name, state, run).await;
        if written.is_err() {
            if let Err(error) = self.remove(&name).await {
                output::warn(&format!("warning: parts of {name}, which could not be written, are left: {error}"));
            }
        }
        written
    }

    async fn write_files(&self, name: &str, state: State, run: Run) -> Result<Manifest, BossManError> {
        let counters = state.counters;
        let mut files = Vec::new();
        for (number, (layer, tensors)) in by_layer(&state).into_iter().enumerate() {
            for (kind, tensors) in tensors {
                // Encoded one after the other, so that memory holds one of them twice, not all.
                let encode = move || weight_files::encode(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)));
                let encoded = tokio::task::spawn_blocking(move || encode().map(|bytes| (hash(&bytes), bytes))).await;
                let encoded = encoded.map_err(|e| BossManError::Usage(format!("encoding a checkpoint: {e}")))?;
                let (sha256, bytes) = encoded?;
                let file = format!("{kind}/{number:04}-{}.safetensors", plain(&layer));
                files.push(File { name: file.clone(), bytes: bytes.len() as u64, sha256 });
                self.folder.put(&format!("{name}/{file}"), bytes).await?;
            }
        }
        let manifest = Manifest::new(counters, run, files).map_err(|e| self.folder.wrong(name, e))?;
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| self.folder.wrong(name, e))?;
        self.folder.put(&format!("{name}/{MANIFEST}"), text).await?;
        Ok(manifest)
    }

    /// Reads a checkpoint and sees that each file is as its manifest says.
    ///
    /// # Errors
    /// A file is missing, damaged, or cannot be read; it is named.
    pub(crate) async fn read(&self, name: &str) -> Result<(State, Manifest), BossManError> {
        let manifest = self.manifest(name).await?;
        let (mut weights, mut optimizer) = (StateDict::default(), BTreeMap::new());
        for file in &manifest.files {
            let place = format!("{name}/{}", file.name);
            let bytes = self.checked(&place, file).await?;
            let decoded = weight_files::decode(&bytes, &self.folder.path(&place));
            let tensors = decoded.map_err(BossManError::into_damage)?;
            match file.name.split('/').next() {
                Some(WEIGHTS) => tensors.iter().for_each(|(name, tensor)| weights.insert(name, tensor)),
                Some(OPTIMIZER) => {
                    optimizer.extend(tensors.iter().map(|(name, t)| (name.to_string(), t.shallow_clone())));
                }
                _ => return Err(self.folder.damaged(&place, "is neither of weights nor of the optimizer")),
            }
        }
        Ok((State { weights, optimizer, counters: manifest.counters }, manifest))
    }

    /// Whether every file of a checkpoint is as its manifest says.
    ///
    /// # Errors
    /// One is not; it is named.
    pub async fn verify(&self, name: &str) -> Result<(), BossManError> {
        self.read(name).await.map(drop)
    }

    /// The state to resume from: that of the checkpoint of this name, or of the last whole one.
    /// Warnings name the damaged ones after it.
    ///
    /// # Errors
    /// There is none, the named one is damaged or not the last, or one cannot be read.
    pub(crate) async fn resume(&self, name: Option<&str>) -> Result<(State, Manifest), BossManError> {
        let listed = self.list().await?;
        if let Some(name) = name {
            let place = listed.iter().position(|listed| listed.name == name);
            let names = || listed.iter().map(|listed| listed.name.as_str()).collect::<Vec<_>>().join(", ");
            let place = place.ok_or_else(|| {
                BossManError::Usage(format!(
                    "{}: there is no checkpoint `{name}`; it has {}",
                    self.folder.named(),
                    names()
                ))
            })?;
            if let Some(later) = listed.get(place + 1) {
                return Err(BossManError::Usage(format!(
                    "{}: {} and later would be mixed up with what follows {name}; `bossman checkpoint prune {} --after {name}` \
                     deletes them",
                    self.folder.named(), later.name, self.folder.named()
                )));
            }
            return self.read(name).await;
        }
        let none = || BossManError::Usage(format!("{}: there is no checkpoint to go on from", self.folder.named()));
        self.last_whole().await?.ok_or_else(none)
    }

    /// The last whole checkpoint, if there is one. Warnings name the damaged ones after it.
    ///
    /// # Errors
    /// The folder or a checkpoint cannot be read. An older checkpoint is no substitute for one that
    /// may be whole.
    pub(crate) async fn last_whole(&self) -> Result<Option<(State, Manifest)>, BossManError> {
        for listed in self.list().await?.iter().rev() {
            match self.read(&listed.name).await {
                Ok(found) => return Ok(Some(found)),
                Err(error) if error.is_damage() => {
                    output::warn(&format!("warning: {error}; looking for the checkpoint before {}", listed.name));
                    self.damaged().insert(listed.name.clone());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Deletes what a policy does not keep, now that a checkpoint of this step was written, and what
    /// this run found damaged when it resumed. A checkpoint that could not be read stays.
    pub(crate) async fn prune(&self, policy: &Policy, step: u64) -> Result<Vec<String>, BossManError> {
        let listed = self.list().await?;
        let there = listed.iter().filter(|listed| listed.step <= step);
        let there: Vec<Manifest> = there.filter_map(|listed| listed.manifest.clone()).collect();
        let mut names: Vec<String> = policy.superfluous(&there).into_iter().map(name_of).collect();
        let damaged = self.damaged().clone();
        let useless = |listed: &&Listed| match listed.step.cmp(&step) {
            Ordering::Less => listed.condition == Condition::Begun || damaged.contains(&listed.name),
            Ordering::Equal => false,
            Ordering::Greater => damaged.contains(&listed.name),
        };
        let useless = listed.iter().filter(useless).map(|listed| listed.name.clone());
        names.extend(useless.filter(|name| !names.contains(name)).collect::<Vec<_>>());
        for name in &names {
            self.remove(name).await?;
        }
        Ok(names)
    }

    /// Deletes a checkpoint, or what is left of one: its manifest first, so that half of one is never taken for a whole.
    ///
    /// # Errors
    /// A file cannot be deleted.
    pub async fn remove(&self, name: &str) -> Result<(), BossManError> {
        self.folder.delete(&format!("{name}/{MANIFEST}")).await?;
        self.folder.delete_folder(name).await?;
        self.damaged().remove(name);
        Ok(())
    }

    fn damaged(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn manifest(&self, name: &str) -> Result<Manifest, BossManError> {
        let place = format!("{name}/{MANIFEST}");
        let bytes = self.folder.get(&place, MAX_MANIFEST).await?;
        parse(&bytes, name).map_err(|problem| match problem {
            // Not this program's to judge, and not to be pruned.
            Refused::OtherVersion(_) => self.folder.wrong(&place, problem),
            Refused::Damaged(_) => self.folder.damaged(&place, problem),
        })
    }

    async fn checked(&self, place: &str, file: &File) -> Result<Bytes, BossManError> {
        let bytes = self.folder.get(place, file.bytes).await?;
        let found = tokio::task::spawn_blocking({
            let bytes = bytes.clone();
            move || hash(&bytes)
        });
        let same = bytes.len() as u64 == file.bytes && found.await.is_ok_and(|found| found == file.sha256);
        match same {
            true => Ok(bytes),
            false => Err(self.folder.damaged(place, DAMAGED)),
        }
    }
}

/// Why a manifest is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("is of version {0}; this program reads version {VERSION}")]
    OtherVersion(u64),
    #[error("{0}")]
    Damaged(String),
}

/// Reads a manifest, which may be of any content.
pub(super) fn parse(bytes: &[u8], name: &str) -> Result<Manifest, Refused> {
    let damaged = |problem: String| Err(Refused::Damaged(problem));
    let manifest: Manifest = match serde_json::from_slice(bytes) {
        Ok(manifest) => manifest,
        // Other versions may have other fields.
        Err(e) => match serde_json::from_slice::<Versioned>(bytes) {
            Ok(other) if other.version != u64::from(VERSION) => return Err(Refused::OtherVersion(other.version)),
            _ => return damaged(format!("is no manifest: {e}")),
        },
    };
    if manifest.version != VERSION {
        return Err(Refused::OtherVersion(manifest.version.into()));
    }
    if !manifest.is_whole() {
        return damaged(DAMAGED.into());
    }
    if name != name_of(manifest.counters.step) {
        return damaged(format!("is of step {}", manifest.counters.step));
    }
    if manifest.counters.loss_scale.is_some_and(|scale| !scale.is_possible()) {
        return damaged("has a loss scale that is impossible".into());
    }
    let within = |file: &File| file.name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    match manifest.files.iter().find(|file| !within(file)) {
        Some(stray) => damaged(format!("names `{}`, which is no file of it", stray.name)),
        None => Ok(manifest),
    }
}

/// What manifests of all versions have.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

/// Whether a folder is a checkpoint's.
pub(crate) fn is_one(folder: &Path) -> bool {
    folder.join(MANIFEST).is_file()
}

/// The weights in a checkpoint's folder.
pub(crate) fn weights_of(folder: &Path) -> Result<StateDict, BossManError> {
    let read = |path: &Path| std::fs::read(path).map_err(|e| BossManError::io(path, &e));
    let (path, name) = (folder.join(MANIFEST), folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf()));
    let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let manifest = parse(&read(&path)?, &name).map_err(|problem| BossManError::file(&path, problem))?;
    let mut weights = StateDict::default();
    for file in manifest.files.iter().filter(|file| file.name.split('/').next() == Some(WEIGHTS)) {
        let path = folder.join(&file.name);
        let bytes = Bytes::from(read(&path)?);
        if hash(&bytes) != file.sha256 {
            return Err(BossManError::file(&path, DAMAGED).into_damage());
        }
        weight_files::decode(&bytes, &path)?.iter().for_each(|(name, tensor)| weights.insert(name, tensor));
    }
    Ok(weights)
}

/// The folder of the checkpoint after so many steps.
fn name_of(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

/// The tensors of each layer, by kind.
type OfLayer = BTreeMap<&'static str, Vec<(String, Tensor)>>;

fn by_layer(state: &State) -> BTreeMap<String, OfLayer> {
    let mut layers: BTreeMap<String, OfLayer> = BTreeMap::new();
    let mut add = |kind, layer: &str, name: &str, tensor: &Tensor| {
        let tensors = layers.entry(layer.to_string()).or_default().entry(kind).or_default();
        tensors.push((name.to_string(), tensor.shallow_clone()));
    };
    let of = |name: &str| name.rsplit_once('.').map_or(name, |(layer, _)| layer).to_string();
    for (name, tensor) in state.weights.iter() {
        add(WEIGHTS, &of(name), name, tensor);
    }
    for (name, tensor) in &state.optimizer {
        add(OPTIMIZER, &of(&of(name)), name, tensor);
    }
    layers
}

/// A layer's name as part of a file's, on every system.
fn plain(layer: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    layer.chars().map(plain).take(100).collect()
}
