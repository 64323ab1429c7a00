//! Weights in files: one safetensors file, or several with an index that are read.

use crate::data::atomic_file::{self, Complete};
use crate::data::disk;
use crate::data::tensor_payload::{from_payload, to_payload};
use crate::weights::chunks::CHUNK_BYTES;
use crate::weights::shown_text::{shown, unreadable};
use crate::weights::tensor_source::{element_count, TensorSource};
use crate::{BossManError, StateDict};
use bytes::Bytes;
use layerspec::DType;
use link::Payload;
use pipeline::TensorMeta;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors, TensorInfo, View};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

/// The name of an index beside its files, and its ending.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";
pub(super) const INDEX_ENDING: &str = ".safetensors.index.json";
/// The file of weights that are in one.
pub(crate) const SINGLE_FILE: &str = "model.safetensors";

/// The largest header that the library reads and writes.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// The index: the file of each tensor.
#[derive(Serialize, Deserialize)]
pub(crate) struct Index {
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, serde_json::Value>,
    pub(super) weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads an index from the text of the file at `path`.
    pub(crate) fn parse(text: &[u8], path: &Path) -> Result<Self, BossManError> {
        let index: Index = serde_json::from_slice(text)
            .map_err(|e| BossManError::file(path, unreadable("not an index of weights", e)))?;
        // An index names its neighbours, and nothing elsewhere. Errors show the names.
        for file in index.weight_map.values() {
            let is_beside = Path::new(file).file_name() == Some(file.as_ref());
            if !is_beside || file.contains(char::is_control) {
                let problem = format!("names `{}`, which is not a file beside it", shown(file));
                return Err(BossManError::file(path, problem));
            }
        }
        Ok(index)
    }

    /// The files that it names.
    pub(crate) fn shards(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }

    /// The tensors that it looks for in a file.
    pub(crate) fn tensors_of<'a>(&'a self, shard: &'a str) -> impl Iterator<Item = &'a str> {
        let of_shard = self.weight_map.iter().filter(move |(_, of)| *of == shard);
        of_shard.map(|(name, _)| name.as_str())
    }
}

impl StateDict {
    /// Checks that a file can be written there. Called before the work that makes it.
    pub fn can_save(path: &Path) -> Result<(), BossManError> {
        check_ending(path)?;
        atomic_file::check_writable(path)
    }

    /// Writes a safetensors file. It appears whole under its name or not at all, also if the
    /// machine loses power.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), BossManError> {
        write_file(self, path.as_ref(), None).map(drop)
    }
}

/// Endings of other formats for weights. Another program would not read a safetensors file under
/// such a name.
const OTHER_FORMATS: [&str; 9] = ["pt", "pth", "bin", "ckpt", "pkl", "npz", "h5", "onnx", "gguf"];

fn check_ending(path: &Path) -> Result<(), BossManError> {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    match OTHER_FORMATS.contains(&ending.as_str()) {
        true => Err(BossManError::file(
            path,
            "BossMan writes safetensors; end the name in .safetensors",
        )),
        false => Ok(()),
    }
}

/// The beginning of a safetensors file, and the places of the tensors behind it.
pub(crate) struct Header {
    /// Everything before the tensors.
    pub(crate) bytes: Vec<u8>,
    /// The tensors in the file's order, each with its first byte in the file.
    pub(crate) starts: Vec<(String, u64)>,
    /// The size of the whole file.
    pub(crate) file_bytes: u64,
}

/// Makes the header that the library would write before these tensors.
///
/// # Errors
/// The tensors are too large or too many for a file.
pub(crate) fn header<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a TensorMeta)>,
) -> Result<Header, BossManError> {
    header_naming(tensors, None)
}

/// As [`header`], which names the framework of the tensors.
fn header_naming<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a TensorMeta)>,
    format: Option<&str>,
) -> Result<Header, BossManError> {
    let refused =
        |e: SafeTensorError| BossManError::Usage(format!("tensors that cannot be written: {e}"));
    let mut sorted: Vec<(&str, &TensorMeta)> = tensors.collect();
    // The library's order: the largest alignment first, then by name.
    sorted.sort_by_key(|(name, meta)| (Reverse(stored_dtype(meta.dtype)), *name));
    let (mut infos, mut end) = (Vec::with_capacity(sorted.len()), 0usize);
    for (name, meta) in sorted {
        let bytes = meta.byte_len().and_then(|bytes| usize::try_from(bytes).ok());
        let next = bytes.and_then(|bytes| end.checked_add(bytes));
        let next = next.ok_or_else(|| refused(SafeTensorError::ValidationOverflow))?;
        let shape = meta.shape.iter().map(|d| *d as usize).collect();
        let dtype = stored_dtype(meta.dtype);
        infos.push((name.to_string(), TensorInfo { dtype, shape, data_offsets: (end, next) }));
        end = next;
    }
    let offsets: Vec<(String, usize)> =
        infos.iter().map(|(name, info)| (name.clone(), info.data_offsets.0)).collect();
    let framework = format.map(|format| [("format".into(), format.into())].into());
    let metadata = Metadata::new(framework, infos).map_err(refused)?;
    let mut text = serde_json::to_vec(&metadata).map_err(|e| refused(e.into()))?;
    // The library pads it with spaces.
    text.resize(text.len().next_multiple_of(size_of::<u64>()), b' ');
    if text.len() > MAX_HEADER_BYTES {
        return Err(refused(SafeTensorError::HeaderTooLarge));
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    let before = bytes.len() as u64;
    let file_bytes = before
        .checked_add(end as u64)
        .ok_or_else(|| refused(SafeTensorError::ValidationOverflow))?;
    let starts = offsets.into_iter().map(|(name, offset)| (name, before + offset as u64)).collect();
    Ok(Header { bytes, starts, file_bytes })
}

/// The tensors of a safetensors file. Errors name the file.
pub(crate) fn decode(bytes: &Bytes, path: &Path) -> Result<StateDict, BossManError> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|e| BossManError::file(path, unreadable("not a safetensors file", e)))?;
    let mut state = StateDict::default();
    for (name, view) in file.iter() {
        let dtype = dtype(view.dtype()).ok_or_else(|| {
            let (name, dtype) = (shown(name), view.dtype());
            let problem = format!("tensor `{name}` has dtype {dtype:?}, which BossMan cannot use");
            BossManError::file(path, problem)
        })?;
        let meta = TensorMeta { dtype, shape: view.shape().iter().map(|d| *d as u64).collect() };
        let payload = Payload { meta, bytes: bytes.slice_ref(view.data()) };
        state.insert(name, &from_payload(&payload)?);
    }
    Ok(state)
}

/// Writes a safetensors file. Its tensors are read while it is written. The file appears whole or
/// not at all. `format` is the framework that transformers expects to be named.
///
/// # Errors
/// A tensor cannot be read, or the file cannot be written.
pub(super) fn write_file(
    tensors: &dyn TensorSource,
    path: &Path,
    format: Option<&str>,
) -> Result<usize, BossManError> {
    let metas = tensors.metas()?;
    let all: BTreeMap<&str, &TensorMeta> =
        metas.iter().map(|(name, meta)| (name.as_str(), meta)).collect();
    write_draft(tensors, &all, path, format)?.rename()?;
    Ok(metas.len())
}

/// As [`write_file`], of some of the tensors. The file does not have its name yet.
pub(super) fn write_draft(
    tensors: &dyn TensorSource,
    some: &BTreeMap<&str, &TensorMeta>,
    path: &Path,
    format: Option<&str>,
) -> Result<Complete, BossManError> {
    let metas = some.iter().map(|(name, meta)| (*name, *meta));
    let Header { bytes, starts, .. } = header_naming(metas, format)?;
    let io = |e: std::io::Error| BossManError::io(path, &e);
    let mut file = atomic_file::create(path)?;
    file.write_all(&bytes).map_err(io)?;
    for (name, _) in &starts {
        let Some(meta) = some.get(name.as_str()) else { continue };
        let all = element_count(meta);
        let together = match tensors.has_slices(name) {
            true => CHUNK_BYTES / meta.dtype.size_bytes(),
            false => all,
        };
        let mut first = 0;
        while first < all {
            let end = all.min(first.saturating_add(together));
            let Payload { meta: found, bytes } = to_payload(&tensors.elements(name, first..end)?)?;
            if found.dtype != meta.dtype || found.shape != [end - first] {
                let problem = format!("`{}` changed while it was written", shown(name));
                return Err(BossManError::file(path, problem));
            }
            file.write_all(&bytes).map_err(io)?;
            first = end;
        }
    }
    atomic_file::complete(path, file)
}

/// Writes a safetensors file of tensors that are asked for their bytes one after the other. The
/// file appears whole or not at all. `format` is the framework that transformers expects to be
/// named.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_views<V: View>(
    path: &Path,
    views: Vec<(String, V)>,
    format: Option<&str>,
) -> Result<(), BossManError> {
    atomic_file::check_writable(path)?;
    let metadata = format.map(|format| [("format".into(), format.into())].into());
    let io = |e: std::io::Error| BossManError::io(path, &e);
    let draft = atomic_file::temporary_file_beside(path).map_err(io)?;
    // The library replaces the draft with a file that only its owner can read, and does not flush
    // it.
    safetensors::serialize_to_file(views, metadata, draft.path()).map_err(|e| match e {
        SafeTensorError::IoError(e) => io(e),
        e => BossManError::file(path, e),
    })?;
    let usual = draft.as_file().metadata().map_err(io)?.permissions();
    std::fs::set_permissions(draft.path(), usual).map_err(io)?;
    disk::rename_flushed(draft.path(), path).map_err(io)
}

/// The element type in a file.
fn stored_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Float32 => Dtype::F32,
        DType::Float64 => Dtype::F64,
        DType::Float16 => Dtype::F16,
        DType::BFloat16 => Dtype::BF16,
        DType::Int64 => Dtype::I64,
        DType::Int32 => Dtype::I32,
        DType::UInt8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

/// The element type here. `None` if there is none.
pub(crate) fn dtype(stored: Dtype) -> Option<DType> {
    Some(match stored {
        Dtype::F32 => DType::Float32,
        Dtype::F64 => DType::Float64,
        Dtype::F16 => DType::Float16,
        Dtype::BF16 => DType::BFloat16,
        Dtype::I64 => DType::Int64,
        Dtype::I32 => DType::Int32,
        Dtype::U8 => DType::UInt8,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use safetensors::tensor::TensorView;
    use tch::{Device, Kind, Tensor};

    fn state(kind: Kind) -> StateDict {
        let mut state = StateDict::default();
        state.insert("0.weight", &Tensor::arange(12, (kind, Device::Cpu)).reshape([4, 3]));
        state.insert("0.bias", &Tensor::arange(4, (kind, Device::Cpu)));
        state.insert("1.weight", &Tensor::arange(4, (kind, Device::Cpu)).reshape([1, 4]));
        state.insert("1.bias", &Tensor::arange(1, (kind, Device::Cpu)));
        state
    }

    fn same(left: &StateDict, right: &StateDict) {
        let names =
            |state: &StateDict| state.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(left), names(right));
        assert!(left.iter().all(|(name, tensor)| tensor.equal(right.get(name).unwrap())));
    }

    #[test]
    fn several_files_and_their_index_are_one_state_dict() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("weights");
        state(Kind::Float).save_sharded(&folder, 40).unwrap();
        // 4 + 16 bytes, then 4, then 16 and 48.
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 4);
        same(&StateDict::load(&folder).unwrap(), &state(Kind::Float));
        same(&StateDict::load(folder.join(INDEX_FILE)).unwrap(), &state(Kind::Float));
    }

    #[test]
    fn a_saved_file_replaces_one_of_its_name_and_leaves_no_draft() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("w.safetensors");
        std::fs::write(&path, "old").unwrap();
        std::fs::write(place.path().join("usual"), "").unwrap();
        state(Kind::Float).save(&path).unwrap();
        same(&StateDict::load(&path).unwrap(), &state(Kind::Float));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2);
        let permissions = |name: &str| place.path().join(name).metadata().unwrap().permissions();
        assert_eq!(permissions("w.safetensors"), permissions("usual"));
    }

    #[test]
    fn a_file_is_the_one_that_the_library_writes() {
        let mut state = state(Kind::BFloat16);
        let numbers = Tensor::arange(6, (Kind::Int64, Device::Cpu)).reshape([2, 3]);
        // More than one chunk.
        state.insert("large", &Tensor::arange(5i64 << 20, (Kind::Float, Device::Cpu)));
        state.insert("turned", &numbers.tr());
        state.insert("empty", &numbers.slice(0, 0, 0, 1));
        state.insert("scalar", &numbers.get(1).get(1).to_kind(Kind::Bool));
        let payload =
            |(name, tensor): (&str, &Tensor)| (name.to_string(), to_payload(tensor).unwrap());
        let payloads: Vec<(String, Payload)> = state.iter().map(payload).collect();
        let place = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| place.path().join(name));
        for format in [None, Some("pt")] {
            let views = payloads.iter().map(|(name, Payload { meta, bytes })| {
                let shape = meta.shape.iter().map(|d| *d as usize).collect();
                let view = TensorView::new(stored_dtype(meta.dtype), shape, bytes).unwrap();
                (name.clone(), view)
            });
            write_views(&theirs, views.collect(), format).unwrap();
            assert_eq!(write_file(&state, &ours, format).unwrap(), payloads.len());
            assert!(std::fs::read(&ours).unwrap() == std::fs::read(&theirs).unwrap());
        }
    }

    #[test]
    fn what_an_index_says_is_checked() {
        let place = tempfile::tempdir().unwrap();
        state(Kind::Float).save(place.path().join("a.safetensors")).unwrap();
        let refused = |text: &str| {
            std::fs::write(place.path().join(INDEX_FILE), text).unwrap();
            StateDict::load(place.path()).unwrap_err().to_string()
        };
        assert!(refused("[]").contains("not an index of weights"));
        let elsewhere = refused(r#"{"weight_map": {"0.bias": "../a.safetensors"}}"#);
        assert!(
            elsewhere.contains("names `../a.safetensors`, which is not a file beside it"),
            "{elsewhere}"
        );
        let hostile = refused(r#"{"weight_map": {"0.bias": "\u001b[2J.safetensors"}}"#);
        assert!(hostile.contains("names ` [2J.safetensors`, which is not a file"), "{hostile}");
        let hostile = refused(r#"{"weight_map": {"\u001b[2J": "a.safetensors"}}"#);
        assert!(hostile.contains("lacks ` [2J`"), "{hostile}");
        let lacking = refused(r#"{"weight_map": {"2.bias": "a.safetensors"}}"#);
        assert!(lacking.contains("lacks `2.bias`"), "{lacking}");
        let missing = r#"{"weight_map": {"0.bias": "b.safetensors"}}"#;
        assert!(refused(missing).contains("b.safetensors"));
        let empty = place.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        let error = StateDict::load(&empty).unwrap_err().to_string();
        assert!(
            error.contains("holds neither model.safetensors nor model.safetensors.index.json"),
            "{error}"
        );
    }

    #[test]
    fn other_floating_point_types_are_converted_and_nothing_else() {
        let text = "inputs: {x: [batch, 3]}\nlayers:\n  - Linear: {in_features: 3, out_features: \
                    4}\n  - Linear: {in_features: 4, out_features: 1}\n";
        let model = Model::from_yaml(text).unwrap();
        for kind in [Kind::Float, Kind::BFloat16, Kind::Half, Kind::Double] {
            same(&state(kind).fit_to(model.graph()).unwrap(), &state(Kind::Float));
        }
        let mut wrong = state(Kind::Float);
        wrong.insert("0.bias", &Tensor::arange(4, (Kind::Int64, Device::Cpu)));
        wrong.insert("1.bias", &Tensor::zeros([2], (Kind::Float, Device::Cpu)));
        wrong.insert("2.bias", &Tensor::zeros([2], (Kind::Float, Device::Cpu)));
        let error = wrong.fit_to(model.graph()).unwrap_err().to_string();
        for part in [
            "`0.bias`: expected float32",
            "`1.bias`: expected",
            "`2.bias`: the model has no such parameter",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}
