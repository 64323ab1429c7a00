//! Checkpoints in a folder.

use super::manifest::{hash, File, Manifest, Run, VERSION};
use super::policy::Policy;
use super::snapshot::State;
use crate::{output, weight_files, BossManError, StateDict};
use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Place;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
    store: Arc<dyn ObjectStore>,
    /// As it was named.
    dir: String,
}

/// A checkpoint, or what is left of one.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its folder.
    pub name: String,
    /// Training steps done.
    pub step: u64,
    /// How large it is, where it is whole as far as its manifest says.
    pub bytes: Result<u64, String>,
    /// It has no manifest: it is being written, or never was to its end.
    pub is_begun: bool,
    pub(crate) manifest: Option<Manifest>,
}

impl Checkpoints {
    /// Those in this folder, which is made where it is missing and `make` says so.
    ///
    /// # Errors
    /// It cannot be made or read, or is a place of a kind that is not known.
    pub fn open(dir: &str, make: bool) -> Result<Self, BossManError> {
        let path = Path::new(dir.strip_prefix("file://").unwrap_or(dir));
        if path.to_string_lossy().contains("://") {
            let problem = "checkpoints go to local folders only, so far; name one";
            return Err(BossManError::file(Path::new(dir), problem));
        }
        if make {
            std::fs::create_dir_all(path).map_err(|e| BossManError::io(path, &e))?;
        }
        if !path.is_dir() {
            return Err(BossManError::file(path, "there is no such folder"));
        }
        // What is said to be written survives that the machine loses power.
        let store = LocalFileSystem::new_with_prefix(path).map_err(|e| BossManError::file(path, e))?;
        let store = store.with_automatic_cleanup(true).with_fsync(true);
        Ok(Checkpoints { store: Arc::new(store), dir: dir.to_string() })
    }

    /// All there are, by their steps, ascending.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn list(&self) -> Result<Vec<Listed>, BossManError> {
        let found = self.store.list_with_delimiter(None).await.map_err(|e| self.wrong("", e))?;
        let mut listed = Vec::new();
        for folder in found.common_prefixes {
            let name = folder.filename().unwrap_or_default().to_string();
            let step = name.strip_prefix(PREFIX).and_then(|step| step.parse().ok());
            // What is named otherwise is somebody else's.
            let Some(step) = step.filter(|step| name_of(*step) == name) else { continue };
            let is_begun = self.is_begun(&name).await;
            let (bytes, manifest) = match self.manifest(&name).await {
                Ok(manifest) => (Ok(manifest.bytes()), Some(manifest)),
                Err(error) => (Err(error.to_string()), None),
            };
            listed.push(Listed { name, step, bytes, is_begun, manifest });
        }
        listed.sort_by_key(|listed| listed.step);
        Ok(listed)
    }

    /// Writes a state, its manifest last. One of the same step is replaced.
    ///
    /// # Errors
    /// A file cannot be written; there is then no checkpoint of this step.
    pub(crate) async fn write(&self, state: State, run: Run) -> Result<Manifest, BossManError> {
        let name = name_of(state.counters.step);
        self.remove(&name).await?;
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
                self.put(&format!("{name}/{file}"), bytes).await?;
            }
        }
        let manifest = Manifest::new(counters, run, files).map_err(|e| self.wrong(&name, e))?;
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| self.wrong(&name, e))?;
        self.put(&format!("{name}/{MANIFEST}"), text).await?;
        Ok(manifest)
    }

    /// Reads a checkpoint and sees that each file is as its manifest says.
    ///
    /// # Errors
    /// A file is missing or damaged; it is named.
    pub(crate) async fn read(&self, name: &str) -> Result<(State, Manifest), BossManError> {
        let manifest = self.manifest(name).await?;
        let (mut weights, mut optimizer) = (StateDict::default(), BTreeMap::new());
        for file in &manifest.files {
            let place = format!("{name}/{}", file.name);
            let bytes = self.checked(&place, file).await?;
            let tensors = weight_files::decode(&bytes, &self.path(&place))?;
            match file.name.split('/').next() {
                Some(WEIGHTS) => tensors.iter().for_each(|(name, tensor)| weights.insert(name, tensor)),
                Some(OPTIMIZER) => {
                    optimizer.extend(tensors.iter().map(|(name, t)| (name.to_string(), t.shallow_clone())));
                }
                _ => return Err(self.wrong(&place, "is neither of weights nor of the optimizer")),
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

    /// The state to go on from: that of the checkpoint of this name, or of the last one that is whole; those after it that are
    /// not are named in warnings.
    ///
    /// # Errors
    /// There is none, or the named one is damaged or not the last.
    pub(crate) async fn resume(&self, name: Option<&str>) -> Result<(State, Manifest), BossManError> {
        let listed = self.list().await?;
        if let Some(name) = name {
            let place = listed.iter().position(|listed| listed.name == name);
            let names = || listed.iter().map(|listed| listed.name.as_str()).collect::<Vec<_>>().join(", ");
            let place = place.ok_or_else(|| {
                BossManError::Usage(format!("{}: there is no checkpoint `{name}`; it has {}", self.dir, names()))
            })?;
            if let Some(later) = listed.get(place + 1) {
                return Err(BossManError::Usage(format!(
                    "{}: {} and later would be mixed up with what follows {name}; `bossman checkpoint prune {} --after {name}` \
                     deletes them",
                    self.dir, later.name, self.dir
                )));
            }
            return self.read(name).await;
        }
        for listed in listed.iter().rev() {
            match self.read(&listed.name).await {
                Ok(found) => return Ok(found),
                Err(error) => {
                    output::warn(&format!("warning: {error}; looking for the checkpoint before {}", listed.name))
                }
            }
        }
        Err(BossManError::Usage(format!("{}: there is no checkpoint to go on from", self.dir)))
    }

    /// Deletes what a policy does not keep, now that a checkpoint of this step was written. What is of later steps was found
    /// damaged when the run went on from before it.
    pub(crate) async fn prune(&self, policy: &Policy, step: u64) -> Result<Vec<String>, BossManError> {
        let listed = self.list().await?;
        let there = listed.iter().filter(|listed| listed.step <= step);
        let there: Vec<Manifest> = there.filter_map(|listed| listed.manifest.clone()).collect();
        let mut names: Vec<String> = policy.superfluous(&there).into_iter().map(name_of).collect();
        let of_no_use = |listed: &&Listed| listed.step > step || (listed.is_begun && listed.step < step);
        names.extend(listed.iter().filter(of_no_use).map(|listed| listed.name.clone()));
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
        let manifest = Place::from(format!("{name}/{MANIFEST}"));
        self.delete(&manifest).await?;
        // With what a program that was killed had begun to write.
        let folder = self.path(name);
        let gone = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
        match gone.map_err(|e| self.wrong(name, e))? {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(BossManError::io(&self.path(name), &e)),
            _ => Ok(()),
        }
    }

    async fn delete(&self, place: &Place) -> Result<(), BossManError> {
        match self.store.delete(place).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.wrong(place.as_ref(), e)),
        }
    }

    async fn is_begun(&self, name: &str) -> bool {
        let found = self.store.head(&Place::from(format!("{name}/{MANIFEST}"))).await;
        matches!(found, Err(object_store::Error::NotFound { .. }))
    }

    async fn manifest(&self, name: &str) -> Result<Manifest, BossManError> {
        let place = format!("{name}/{MANIFEST}");
        let bytes = self.get(&place, MAX_MANIFEST).await?;
        parse(&bytes, name).map_err(|problem| self.wrong(&place, problem))
    }

    async fn checked(&self, place: &str, file: &File) -> Result<Bytes, BossManError> {
        let bytes = self.get(place, file.bytes).await?;
        let found = tokio::task::spawn_blocking({
            let bytes = bytes.clone();
            move || hash(&bytes)
        });
        let same = bytes.len() as u64 == file.bytes && found.await.is_ok_and(|found| found == file.sha256);
        match same {
            true => Ok(bytes),
            false => Err(self.wrong(place, DAMAGED)),
        }
    }

    /// A file of at most so many bytes.
    async fn get(&self, place: &str, most: u64) -> Result<Bytes, BossManError> {
        let found = self.store.get(&Place::from(place)).await.map_err(|e| match e {
            object_store::Error::NotFound { .. } => self.wrong(place, "is missing"),
            e => self.wrong(place, e),
        })?;
        if found.meta.size > most {
            let size = found.meta.size;
            return Err(self.wrong(place, format!("is damaged: it has {size} bytes, {most} at most are expected")));
        }
        found.bytes().await.map_err(|e| self.wrong(place, e))
    }

    async fn put(&self, place: &str, bytes: Vec<u8>) -> Result<(), BossManError> {
        let put = self.store.put(&Place::from(place), PutPayload::from(bytes)).await;
        put.map(drop).map_err(|e| self.wrong(place, e))
    }

    fn path(&self, place: &str) -> PathBuf {
        Path::new(self.dir.strip_prefix("file://").unwrap_or(&self.dir)).join(place)
    }

    fn wrong(&self, place: &str, problem: impl ToString) -> BossManError {
        BossManError::file(&self.path(place), problem)
    }
}

/// A manifest, which may be of any content.
fn parse(bytes: &[u8], name: &str) -> Result<Manifest, String> {
    let manifest: Manifest = serde_json::from_slice(bytes).map_err(|e| format!("is no manifest: {e}"))?;
    if manifest.version != VERSION {
        return Err(format!("is of version {}; this program reads version {VERSION}", manifest.version));
    }
    if !manifest.is_whole() {
        return Err(DAMAGED.into());
    }
    if name != name_of(manifest.counters.step) {
        return Err(format!("is of step {}", manifest.counters.step));
    }
    if manifest.counters.loss_scale.is_some_and(|scale| !scale.is_possible()) {
        return Err("has a scale of the loss that cannot be".into());
    }
    let within = |file: &File| file.name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    match manifest.files.iter().find(|file| !within(file)) {
        Some(stray) => Err(format!("names `{}`, which is no file of it", stray.name)),
        None => Ok(manifest),
    }
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
            return Err(BossManError::file(&path, DAMAGED));
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
