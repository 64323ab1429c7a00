//! Writes weights to a folder: several safetensors files and their index, as Hugging Face's
//! libraries write them.

use super::safetensors_files::{write_draft, write_file, Index, INDEX_FILE, SINGLE_FILE};
use super::tensor_source::TensorSource;
use crate::checkpoint;
use crate::data::{atomic_file, disk};
use crate::{BossManError, StateDict};
use pipeline::TensorMeta;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// The framework that the files name. transformers refuses files that name none.
const FORMAT: Option<&str> = Some("pt");

/// Tensors of one file.
type Shard<'a> = BTreeMap<&'a str, &'a TensorMeta>;

impl StateDict {
    /// Writes safetensors files with at most this many bytes of tensors each. A larger tensor gets
    /// a file of its own. Writes the index last, which names the file of each tensor. Creates a
    /// missing folder.
    pub fn save_sharded(
        &self,
        folder: impl AsRef<Path>,
        most_bytes: u64,
    ) -> Result<(), BossManError> {
        write_sharded(self, folder.as_ref(), most_bytes).map(drop)
    }
}

/// As [`StateDict::save_sharded`], of tensors that are read while they are written. Returns their
/// number. The files get their names when all are complete, so the tensors may come from files of
/// the same folder.
pub(super) fn write_sharded(
    tensors: &dyn TensorSource,
    folder: &Path,
    most_bytes: u64,
) -> Result<usize, BossManError> {
    std::fs::create_dir_all(folder).map_err(|e| BossManError::io(folder, &e))?;
    check_folder(folder)?;
    let metas = tensors.metas()?;
    write_shards(tensors, &shards(&metas, most_bytes), folder)?;
    Ok(metas.len())
}

/// As [`write_sharded`], but one file has no index.
pub(super) fn write_model(
    tensors: &dyn TensorSource,
    folder: &Path,
    most_bytes: u64,
) -> Result<usize, BossManError> {
    let metas = tensors.metas()?;
    match shards(&metas, most_bytes) {
        shards if shards.len() > 1 => write_shards(tensors, &shards, folder)?,
        _ => {
            write_file(tensors, &folder.join(SINGLE_FILE), FORMAT)?;
        }
    }
    Ok(metas.len())
}

/// The tensors of each file.
fn shards(metas: &BTreeMap<String, TensorMeta>, most_bytes: u64) -> Vec<Shard<'_>> {
    let (mut shards, mut filled) = (vec![Shard::new()], 0u64);
    for (name, meta) in metas {
        let bytes = meta.byte_len().unwrap_or(u64::MAX);
        if filled > 0 && filled.saturating_add(bytes) > most_bytes {
            shards.push(Shard::new());
            filled = 0;
        }
        filled = filled.saturating_add(bytes);
        if let Some(shard) = shards.last_mut() {
            shard.insert(name, meta);
        }
    }
    shards
}

fn write_shards(
    tensors: &dyn TensorSource,
    shards: &[Shard<'_>],
    folder: &Path,
) -> Result<(), BossManError> {
    let count = shards.len();
    let (mut drafts, mut weight_map, mut total) = (Vec::new(), BTreeMap::new(), 0u64);
    for (number, shard) in (1..).zip(shards) {
        let file = format!("model-{number:05}-of-{count:05}.safetensors");
        drafts.push(write_draft(tensors, shard, &folder.join(&file), FORMAT)?);
        weight_map.extend(shard.keys().map(|name| (name.to_string(), file.clone())));
        let bytes = shard.values().filter_map(|meta| meta.byte_len());
        total = bytes.fold(total, u64::saturating_add);
    }
    let index = Index { metadata: [("total_size".to_string(), total.into())].into(), weight_map };
    let path = folder.join(INDEX_FILE);
    let text = serde_json::to_vec_pretty(&index).map_err(|e| BossManError::file(&path, e))?;
    let mut file = atomic_file::create(&path)?;
    file.write_all(&text).map_err(|e| BossManError::io(&path, &e))?;
    let index = atomic_file::complete(&path, file)?;
    // Without an index nobody takes new files and old ones for the same weights.
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(BossManError::io(&path, &e)),
        _ => {}
    }
    for draft in drafts {
        draft.rename()?;
    }
    index.rename()
}

/// Refuses a folder in which other weights would be read instead.
fn check_folder(folder: &Path) -> Result<(), BossManError> {
    let single = folder.join(SINGLE_FILE);
    let has_single = disk::is_file(&single).map_err(|e| BossManError::io(&single, &e))?;
    let other = match (has_single, checkpoint::is_checkpoint(folder)?) {
        (true, _) => format!("has {SINGLE_FILE}, which would be read instead"),
        (false, true) => "is a checkpoint, whose files would be read instead".into(),
        (false, false) => return Ok(()),
    };
    Err(BossManError::file(folder, format!("{other}; name another folder")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind, Tensor};

    fn metadata(path: &Path) -> Option<String> {
        let bytes = std::fs::read(path).unwrap();
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        metadata.metadata().as_ref().and_then(|found| found.get("format").cloned())
    }

    #[test]
    fn a_folder_in_which_other_weights_would_be_read_is_refused() {
        let mut state = StateDict::default();
        state.insert("a", &Tensor::zeros([4], (Kind::Float, Device::Cpu)));
        let place = tempfile::tempdir().unwrap();
        let single = place.path().join(SINGLE_FILE);
        state.save(&single).unwrap();
        let error = state.save_sharded(place.path(), 1).unwrap_err().to_string();
        assert!(error.contains("has model.safetensors, which would be read instead"), "{error}");
        std::fs::remove_file(single).unwrap();
        state.save_sharded(place.path(), 1).unwrap();
        state.save_sharded(place.path(), 1).unwrap();
        assert_eq!(StateDict::load(place.path()).unwrap().iter().count(), 1);
    }

    #[test]
    fn files_for_transformers_name_a_framework_and_one_has_no_index() {
        let mut state = StateDict::default();
        state.insert("a", &Tensor::zeros([4], (Kind::Float, Device::Cpu)));
        state.insert("b", &Tensor::zeros([4], (Kind::Float, Device::Cpu)));
        let place = tempfile::tempdir().unwrap();
        write_model(&state, place.path(), 32).unwrap();
        let single = place.path().join(SINGLE_FILE);
        assert_eq!(metadata(&single).as_deref(), Some("pt"));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        let place = tempfile::tempdir().unwrap();
        write_model(&state, place.path(), 31).unwrap();
        assert!(place.path().join(INDEX_FILE).is_file());
        let shard = place.path().join("model-00002-of-00002.safetensors");
        assert_eq!(metadata(&shard).as_deref(), Some("pt"));
        assert_eq!(StateDict::load(place.path()).unwrap().iter().count(), 2);
    }
}
