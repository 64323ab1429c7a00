//! Files that layers are built from.

use super::shown_text::shown;
use super::tensor_headers::TensorHeaders;
use crate::BossManError;
use bytes::Bytes;
use layerspec::layers::{FileContent, LayerFile, MAX_FILE_BYTES};
use pipeline::TensorMeta;
use sha2::{Digest, Sha256};
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most names of tensors that a message lists.
const SHOWN_NAMES: usize = 12;

/// Reads what layers take from files of one folder.
pub(super) struct LayerFiles<'a> {
    folder: &'a Path,
    /// The headers of safetensors files, by path.
    headers: BTreeMap<PathBuf, TensorHeaders>,
}

impl<'a> LayerFiles<'a> {
    pub(super) fn of(folder: &'a Path) -> Self {
        LayerFiles { folder, headers: BTreeMap::new() }
    }

    /// The bytes that a layer takes, and their SHA-256.
    ///
    /// # Errors
    /// The file cannot be read or is too large, it has no such tensor, or the model file expects
    /// another SHA-256.
    pub(super) fn read(&mut self, file: &LayerFile<'_>) -> Result<(String, Bytes), BossManError> {
        let path = self.folder.join(file.path);
        let (what, contents) = match file.content {
            FileContent::Whole => ("its SHA-256".to_owned(), whole(&path)?),
            FileContent::Tensor { name, dtype, shape } => {
                let expected = TensorMeta { dtype, shape: shape.to_vec() };
                let contents = self.tensor(&path, name, &expected)?;
                (format!("the SHA-256 of its tensor `{}`", shown(name)), contents)
            }
        };
        let hash: String =
            Sha256::digest(&contents).iter().map(|byte| format!("{byte:02x}")).collect();
        match file.sha256.as_deref().is_some_and(|expected| expected != hash) {
            true => Err(BossManError::file(
                &path,
                format!("{what} is {hash}, not what the model file says"),
            )),
            false => Ok((hash, contents)),
        }
    }

    /// The bytes of a tensor, which must be the expected one.
    fn tensor(
        &mut self,
        path: &Path,
        name: &str,
        expected: &TensorMeta,
    ) -> Result<Bytes, BossManError> {
        let headers = match self.headers.entry(path.into()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(TensorHeaders::of_single_file(path)?),
        };
        let wrong = |problem: String| BossManError::file(path, problem);
        let Some(found) = headers.get(name) else {
            let known = headers.iter().take(SHOWN_NAMES).map(|(name, _)| shown(name));
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(wrong(format!(
                "has no tensor `{}`, which the model file takes from it; its first are: {known}",
                shown(name)
            )));
        };
        if found != expected {
            return Err(wrong(format!(
                "its tensor `{}` is {found}; write in the model file `shape: {:?}, dtype: {}`, \
                 instead of {expected}",
                shown(name),
                found.shape,
                found.dtype
            )));
        }
        // Before memory is taken for it.
        match expected.byte_len() {
            Some(bytes) if bytes <= MAX_FILE_BYTES => headers.bytes(name),
            _ => Err(wrong(format!("its tensor `{}` is larger than 256 MiB", shown(name)))),
        }
    }
}

/// All bytes of a file.
fn whole(path: &Path) -> Result<Bytes, BossManError> {
    let mut contents = Vec::new();
    // One byte more than allowed tells a file that is too large, whatever its length claims to be.
    let read =
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut contents));
    read.map_err(|error| BossManError::io(path, &error))?;
    if contents.len() as u64 > MAX_FILE_BYTES {
        return Err(BossManError::file(
            path,
            "is larger than 256 MiB, more than a layer's file may be",
        ));
    }
    Ok(contents.into())
}

#[cfg(test)]
mod tests {
    use crate::{Model, StateDict};
    use tch::{Device, Kind, Tensor};

    const LAYER: &str = "path: constants.safetensors, tensor: index, shape: [2, 3], dtype: int64";

    /// Reads a model with a constant whose file has the numbers 0 to 5, and the same once more.
    fn read(arguments: &[&str]) -> Result<Model, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut constants = StateDict::default();
        let numbers = Tensor::arange(6, (Kind::Int64, Device::Cpu)).reshape([2, 3]);
        constants.insert("index", &numbers);
        constants.insert("same", &numbers);
        constants.insert("unused", &Tensor::zeros([5], (Kind::Float, Device::Cpu)));
        constants.save(folder.path().join("constants.safetensors")).unwrap();
        let layers: String =
            arguments.iter().map(|layer| format!("  - Constant: {{{layer}}}\n")).collect();
        let path = folder.path().join("model.yaml");
        std::fs::write(&path, format!("inputs: {{x: [batch, 2]}}\nlayers:\n{layers}")).unwrap();
        Model::from_file(path).map_err(|error| error.to_string())
    }

    #[test]
    fn the_bytes_of_a_tensor_are_read_once_without_the_rest_of_the_file() {
        let model = read(&[LAYER, &LAYER.replace("index", "same")]).unwrap();
        let files: Vec<_> = model.files().collect();
        let expected: Vec<u8> = (0i64..6).flat_map(i64::to_le_bytes).collect();
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].1[..], expected[..]);
        let hash = files[0].0.clone();
        let pinned = format!("{LAYER}, sha256: {hash}");
        assert_eq!(read(&[&pinned]).unwrap().files().count(), 1);
        let other = format!("{LAYER}, sha256: {}", "ab".repeat(32));
        let error = read(&[&other]).map(drop).unwrap_err();
        let expected = format!("the SHA-256 of its tensor `index` is {hash}, not what the model");
        assert!(error.contains(&expected), "{error}");
    }

    #[test]
    fn another_tensor_than_the_model_file_says_is_refused() {
        let float = LAYER.replace("int64", "float32");
        let size = LAYER.replace("[2, 3]", "[3, 2]");
        let missing = LAYER.replace("index", "mask");
        let absent = LAYER.replace("constants", "others");
        for (layer, expected) in [
            (float, "`index` is int64 [2, 3]; write in the model file `shape: [2, 3], dtype: int"),
            (size, "instead of int64 [3, 2]"),
            (
                missing,
                "has no tensor `mask`, which the model file takes from it; its first are: in",
            ),
            (absent, "others.safetensors: "),
        ] {
            let error = read(&[&layer]).map(drop).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
