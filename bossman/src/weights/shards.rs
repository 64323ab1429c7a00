//! Writes weights to a folder: several safetensors files and their index, as Hugging Face's
//! libraries write them.

use super::safetensors_files::{write, Index, INDEX_FILE, SINGLE_FILE};
use crate::data::atomic_file;
use crate::data::tensor_payload::to_payload;
use crate::{BossManError, StateDict};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use tch::Tensor;

/// The framework that the files name. transformers refuses files that name none.
const FORMAT: Option<&str> = Some("pt");

/// Tensors of one file.
type Shard<'a> = Vec<(&'a str, &'a Tensor)>;

impl StateDict {
    /// Writes safetensors files with at most this many bytes of tensors each. A larger tensor gets
    /// a file of its own. Writes the index last, which names the file of each tensor. Creates a
    /// missing folder.
    pub fn save_sharded(
        &self,
        folder: impl AsRef<Path>,
        most_bytes: u64,
    ) -> Result<(), BossManError> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(|e| BossManError::io(folder, &e))?;
        let (shards, total) = self.shards(most_bytes)?;
        write_shards(&shards, total, folder)
    }

    /// As [`StateDict::save_sharded`], but one file has no index.
    pub(super) fn save_model(&self, folder: &Path, most_bytes: u64) -> Result<(), BossManError> {
        match self.shards(most_bytes)? {
            (shards, total) if shards.len() > 1 => write_shards(&shards, total, folder),
            _ => write(&folder.join(SINGLE_FILE), self.iter(), FORMAT),
        }
    }

    /// The tensors of each file, and the bytes of all.
    fn shards(&self, most_bytes: u64) -> Result<(Vec<Shard<'_>>, u64), BossManError> {
        let (mut shards, mut filled) = (vec![Vec::new()], 0u64);
        let mut total = 0u64;
        for (name, tensor) in self.iter() {
            let bytes = to_payload(tensor)?.bytes.len() as u64;
            if filled > 0 && filled + bytes > most_bytes {
                shards.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            total += bytes;
            if let Some(shard) = shards.last_mut() {
                shard.push((name, tensor));
            }
        }
        Ok((shards, total))
    }
}

fn write_shards(shards: &[Shard<'_>], total: u64, folder: &Path) -> Result<(), BossManError> {
    let count = shards.len();
    let mut weight_map = BTreeMap::new();
    for (number, shard) in (1..).zip(shards) {
        let file = format!("model-{number:05}-of-{count:05}.safetensors");
        write(&folder.join(&file), shard.iter().copied(), FORMAT)?;
        weight_map.extend(shard.iter().map(|(name, _)| (name.to_string(), file.clone())));
    }
    let index = Index { metadata: [("total_size".to_string(), total.into())].into(), weight_map };
    let path = folder.join(INDEX_FILE);
    let text = serde_json::to_vec_pretty(&index).map_err(|e| BossManError::file(&path, e))?;
    let mut file = atomic_file::create(&path)?;
    file.write_all(&text).map_err(|e| BossManError::io(&path, &e))?;
    atomic_file::commit(&path, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    fn metadata(path: &Path) -> Option<String> {
        let bytes = std::fs::read(path).unwrap();
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        metadata.metadata().as_ref().and_then(|found| found.get("format").cloned())
    }

    #[test]
    fn files_for_transformers_name_a_framework_and_one_has_no_index() {
        let mut state = StateDict::default();
        state.insert("a", &Tensor::zeros([4], (Kind::Float, Device::Cpu)));
        state.insert("b", &Tensor::zeros([4], (Kind::Float, Device::Cpu)));
        let place = tempfile::tempdir().unwrap();
        state.save_model(place.path(), 32).unwrap();
        let single = place.path().join(SINGLE_FILE);
        assert_eq!(metadata(&single).as_deref(), Some("pt"));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        let place = tempfile::tempdir().unwrap();
        state.save_model(place.path(), 31).unwrap();
        assert!(place.path().join(INDEX_FILE).is_file());
        let shard = place.path().join("model-00002-of-00002.safetensors");
        assert_eq!(metadata(&shard).as_deref(), Some("pt"));
        assert_eq!(StateDict::load(place.path()).unwrap().iter().count(), 2);
    }
}
