//! Loads weights from files: one, several with an index, or a checkpoint.

use super::safetensors_files::{decode, Index, INDEX_ENDING, INDEX_FILE, SINGLE_FILE};
use super::shown_text::shown;
use crate::checkpoint;
use crate::data::disk;
use crate::{BossManError, StateDict};
use bytes::Bytes;
use std::path::{Path, PathBuf};

impl StateDict {
    /// Reads a safetensors file; or all files that an index (`.safetensors.index.json`) names; or a
    /// folder with `model.safetensors` or `model.safetensors.index.json`; or a checkpoint's folder.
    ///
    /// # Errors
    /// A file cannot be read, is not a safetensors file, has an unsupported dtype, or lacks a
    /// tensor that the index names.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, BossManError> {
        let path = path.as_ref();
        if path.is_dir() {
            if checkpoint::is_checkpoint(path)? {
                return checkpoint::load_weights(path);
            }
            // As transformers: an index may be left of files that one has replaced.
            for file in [SINGLE_FILE, INDEX_FILE].map(|name| path.join(name)) {
                if disk::is_file(&file).map_err(|e| BossManError::io(&file, &e))? {
                    return Self::load(file);
                }
            }
            return Err(BossManError::file(
                path,
                format!("holds neither {SINGLE_FILE} nor {INDEX_FILE}"),
            ));
        }
        match path.to_string_lossy().ends_with(INDEX_ENDING) {
            true => load_sharded(path),
            false => load_file(path),
        }
    }
}

fn load_file(path: &Path) -> Result<StateDict, BossManError> {
    decode(&Bytes::from(std::fs::read(path).map_err(|e| BossManError::io(path, &e))?), path)
}

fn load_sharded(path: &Path) -> Result<StateDict, BossManError> {
    let text = std::fs::read(path).map_err(|e| BossManError::io(path, &e))?;
    let index = Index::parse(&text, path)?;
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let mut state = StateDict::default();
    for file in index.shards() {
        let shard: PathBuf = folder.join(file);
        let found = load_file(&shard)?;
        for name in index.tensors_of(file) {
            let missing = || {
                BossManError::file(
                    &shard,
                    format!("lacks `{}`, which {} looks for in it", shown(name), path.display()),
                )
            };
            state.insert(name, found.get(name).ok_or_else(missing)?);
        }
    }
    Ok(state)
}
