//! Weights to start from that stay in their files until a worker needs them.

use crate::checkpoint::{is_checkpoint, weight_headers};
use crate::data::tensor_payload::to_payload;
use crate::weights::chunks::Unread;
use crate::weights::fit::{Fit, Tied};
use crate::weights::rename_rules::{RenameRules, Source};
use crate::weights::tensor_headers::{FileStamp, TensorHeaders};
use crate::weights::tensor_source::{element_count, missing, narrowed, TensorSource};
use crate::{BossManError, Model};
use ::data::{HashedWeight, WeightPart, WeightSource};
use link::Payload;
use pipeline::{StateDigest, StateName, TensorMeta, SLICE_BYTES};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tch::Tensor;
use tensor::TensorError;

/// A weight, or some of its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The weight's name.
    pub(crate) name: String,
    /// The elements, in row-major order. `None` for all of them.
    pub(crate) elements: Option<Range<u64>>,
}

/// The places of a model's parameters and buffers in safetensors files.
#[derive(Clone, Debug)]
pub(crate) struct WeightFiles {
    /// The folder of the files.
    folder: PathBuf,
    sources: BTreeMap<String, WeightSource>,
    /// The files as they were when their headers were read.
    stamps: BTreeMap<PathBuf, FileStamp>,
}

impl Piece {
    /// The name under which it travels.
    pub(crate) fn state_name(&self) -> String {
        let name = match &self.elements {
            Some(elements) => StateName::of_slice(&self.name, elements.start),
            None => StateName::of_parameter(&self.name),
        };
        name.to_string()
    }
}

impl WeightFiles {
    /// Finds the parameters in the headers of the files at `path`, which may be the folder of a
    /// checkpoint, too. Parameters that are `fresh` in a run file must not be there.
    ///
    /// # Errors
    /// A file cannot be read, or the tensors are not those of the model. All differences are
    /// listed.
    pub(crate) fn find(
        path: &Path,
        rename: &RenameRules,
        model: &Model,
    ) -> Result<Self, BossManError> {
        Self::of(&headers(path)?, rename, model, &rename.fresh_parameters(model))
    }

    /// As [`WeightFiles::find`], of all parameters, also those that are `fresh`.
    ///
    /// # Errors
    /// Those of [`WeightFiles::find`].
    pub(crate) fn find_all(
        path: &Path,
        rename: &RenameRules,
        model: &Model,
    ) -> Result<Self, BossManError> {
        Self::of(&headers(path)?, rename, model, &[])
    }

    /// Finds the parameters that are not `fresh`.
    fn of(
        headers: &TensorHeaders,
        rename: &RenameRules,
        model: &Model,
        fresh: &[String],
    ) -> Result<Self, BossManError> {
        let Fit { sources, tied, mut problems, .. } =
            Fit::of(model.graph(), headers, rename, fresh);
        for Tied { name, owner, tensor } in tied {
            if headers.differ(&name, &tensor)? {
                problems.push(format!(
                    "`{name}`: tied to `{owner}` in the model, but different in the weights"
                ));
            }
        }
        if !problems.is_empty() {
            return Err(BossManError::StateDict(problems));
        }
        let expected = crate::weights::state_dict::expected(model.graph()).owned;
        let (mut found, mut stamps) = (BTreeMap::new(), BTreeMap::new());
        for (name, of_one) in sources {
            let files = of_one.iter().filter_map(|source| headers.stamp(&source.name));
            stamps.extend(files.map(|(file, stamp)| (file.to_path_buf(), stamp.clone())));
            let parts = of_one.iter().map(|source| part(source, headers));
            let parts = parts.collect::<Result<_, BossManError>>()?;
            if let Some(expected) = expected.get(&name) {
                found.insert(name, WeightSource { meta: expected.meta.clone(), parts });
            }
        }
        Ok(WeightFiles { folder: headers.folder().to_path_buf(), sources: found, stamps })
    }

    /// The digest of the weights, that of [`crate::StateDict::digest`]. Reads all files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn digest(&self) -> Result<StateDigest, BossManError> {
        let hash = |(name, source): (&String, &WeightSource)| {
            let hash = self.unchanged(source, || Ok(source.hash(&self.folder)?))?;
            Ok((name.clone(), hash))
        };
        let hashes = self.sources.iter().map(hash).collect::<Result<_, BossManError>>()?;
        Ok(StateDigest::of(&hashes))
    }

    /// Reads from the files of a weight. Refuses files that were replaced or written to since their
    /// headers were read: parts of two files would be mixed.
    fn unchanged<T>(
        &self,
        source: &WeightSource,
        read: impl FnOnce() -> Result<T, BossManError>,
    ) -> Result<T, BossManError> {
        let found = read();
        // Before the error of a read, which a change explains.
        for part in &source.parts {
            let path = self.folder.join(&part.file);
            if let Some(stamp) = self.stamps.get(&path) {
                stamp.check(&path)?;
            }
        }
        found
    }

    /// Descriptions of the weights for workers that have the same files. Reads all files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn hashed(&self) -> Result<Vec<HashedWeight>, BossManError> {
        let describe = |(name, source): (&String, &WeightSource)| {
            let name = name.clone();
            let weight = HashedWeight { name, source: source.clone(), hash: [0; 32] };
            weight.encode().map_err(|e| {
                let name = &weight.name;
                BossManError::Usage(format!("`{name}`: {e}; leave out `on: workers` in `weights`"))
            })?;
            let hash = self.unchanged(source, || Ok(source.hash(&self.folder)?))?;
            Ok(HashedWeight { hash, ..weight })
        };
        self.sources.iter().map(describe).collect()
    }

    /// The weights in pieces. A large weight is cut, unless the file has its transpose.
    pub(crate) fn pieces(&self) -> Vec<Unread<Piece>> {
        self.sources.iter().flat_map(|(name, source)| pieces(name, source)).collect()
    }

    /// Reads a piece.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(&self, piece: &Piece) -> Result<Payload, BossManError> {
        let source = self.sources.get(&piece.name);
        let source = source.ok_or_else(|| BossManError::Usage("an unknown weight".into()))?;
        let tensor = self.unchanged(source, || match &piece.elements {
            Some(elements) => Ok(source.read_slice(&self.folder, elements.clone())?),
            None => Ok(source.read(&self.folder)?),
        })?;
        to_payload(&tensor)
    }
}

impl TensorSource for WeightFiles {
    fn metas(&self) -> Result<BTreeMap<String, TensorMeta>, BossManError> {
        let meta = |(name, source): (&String, &WeightSource)| (name.clone(), source.meta.clone());
        Ok(self.sources.iter().map(meta).collect())
    }

    fn has_slices(&self, name: &str) -> bool {
        self.sources.get(name).is_some_and(WeightSource::has_slices)
    }

    fn elements(&self, name: &str, elements: Range<u64>) -> Result<Tensor, BossManError> {
        let source = self.sources.get(name).ok_or_else(|| missing(name))?;
        let is_whole = elements == (0..element_count(&source.meta));
        self.unchanged(source, || match source.has_slices() && !is_whole {
            true => Ok(source.read_slice(&self.folder, elements)?),
            false => {
                let whole = source.read(&self.folder)?;
                narrowed(&whole.f_flatten(0, -1).map_err(TensorError::from)?, elements)
            }
        })
    }
}

fn headers(path: &Path) -> Result<TensorHeaders, BossManError> {
    match path.is_dir() && is_checkpoint(path)? {
        // `runs/latest` may lead elsewhere soon.
        true => weight_headers(&path.canonicalize().map_err(|e| BossManError::io(path, &e))?),
        false => TensorHeaders::read(path),
    }
}

/// A weight as one piece, or a large one as several.
fn pieces(name: &str, source: &WeightSource) -> Vec<Unread<Piece>> {
    let unread = |elements, bytes| {
        let place = Piece { name: name.into(), elements };
        Unread { name: place.state_name(), bytes, place }
    };
    let bytes = source.meta.byte_len().unwrap_or(0);
    if bytes <= SLICE_BYTES || !source.has_slices() {
        return vec![unread(None, bytes)];
    }
    let size = source.meta.dtype.size_bytes();
    // Elements of the file may be larger.
    let of_parts = source.parts.iter().map(|part| part.meta.dtype.size_bytes());
    let (all, most) = (bytes / size, SLICE_BYTES / of_parts.fold(size, u64::max));
    let slice = |number: u64| number * most..all.min((number + 1) * most);
    let piece = |elements: Range<u64>| {
        let bytes = (elements.end - elements.start) * size;
        unread(Some(elements), bytes)
    };
    (0..all.div_ceil(most)).map(slice).map(piece).collect()
}

/// The place of a tensor that a parameter is made of.
fn part(source: &Source, headers: &TensorHeaders) -> Result<WeightPart, BossManError> {
    let (file, start, meta) = headers.place(&source.name).ok_or_else(|| missing(&source.name))?;
    let below = file.strip_prefix(headers.folder());
    Ok(WeightPart {
        file: below.map_err(|e| BossManError::file(file, e))?.into(),
        start,
        meta: meta.clone(),
        is_transposed: source.is_transposed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tensor_payload::from_payload;
    use crate::StateDict;
    use tch::{Device, Kind};

    const MODEL: &str = "
inputs: {x: [batch, 2]}
layers:
  - Linear: {in_features: 2, out_features: 3}
    name: a
  - Linear: {in_features: 3, out_features: 2, bias: false}
    name: b
";

    /// Weights in files of their own, so that every one has another file and place.
    fn saved() -> (tempfile::TempDir, StateDict) {
        let mut state = StateDict::default();
        let numbers = Tensor::arange(6, (Kind::BFloat16, Device::Cpu));
        state.insert("a.bias", &numbers.slice(0, 0, 3, 1));
        state.insert("top", &numbers.slice(0, 0, 2, 1).reshape([1, 2]));
        state.insert("bottom", &numbers.slice(0, 2, 6, 1).reshape([2, 2]));
        state.insert("turned", &numbers.reshape([3, 2]));
        let place = tempfile::tempdir().unwrap();
        state.save_sharded(place.path(), 10).unwrap();
        (place, state)
    }

    fn rules() -> RenameRules {
        let mut rename = RenameRules::default();
        rename.rule("a.weight", &["top".into(), "bottom".into()]).unwrap();
        rename.rule("b.weight", &[Source::transposed("turned")]).unwrap();
        rename
    }

    #[test]
    fn weights_are_those_that_a_state_dict_would_have() {
        let (place, state) = saved();
        let model = Model::from_yaml(MODEL).unwrap();
        let expected = rules().apply(&state, &model).unwrap().fit_to(model.graph()).unwrap();
        let files = WeightFiles::find(place.path(), &rules(), &model).unwrap();
        assert_eq!(files.digest().unwrap(), expected.digest().unwrap());
        let pieces = files.pieces();
        let names: Vec<&str> = pieces.iter().map(|piece| piece.name.as_str()).collect();
        assert_eq!(names, ["a.bias", "a.weight", "b.weight"]);
        for Unread { name, place, .. } in &pieces {
            let tensor = from_payload(&files.read(place).unwrap()).unwrap();
            assert!(tensor.equal(expected.get(name).unwrap()), "{name}");
        }
        for weight in files.hashed().unwrap() {
            let tensor = weight.read(place.path()).unwrap();
            assert!(tensor.equal(expected.get(&weight.name).unwrap()), "{}", weight.name);
        }
    }

    #[test]
    fn files_that_change_after_their_headers_were_read_are_refused() {
        let (place, state) = saved();
        let model = Model::from_yaml(MODEL).unwrap();
        let files = WeightFiles::find(place.path(), &rules(), &model).unwrap();
        let piece = files.pieces().remove(0).place;
        files.read(&piece).unwrap();
        // The same names, sizes and numbers, but other files.
        state.save_sharded(place.path(), 10).unwrap();
        for error in [
            files.read(&piece).map(drop).unwrap_err(),
            files.digest().map(drop).unwrap_err(),
            files.hashed().map(drop).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains("was replaced, changed or deleted after its header"), "{error}");
        }
    }

    #[test]
    fn every_difference_is_one_error() {
        let (place, _) = saved();
        let model = Model::from_yaml(MODEL).unwrap();
        let error = WeightFiles::find(place.path(), &RenameRules::default(), &model).unwrap_err();
        for part in ["`a.weight`: missing", "`top`: the model has no such parameter"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn pieces_are_bounded() {
        let meta = |elements: u64| pipeline::TensorMeta {
            dtype: layerspec::DType::Float32,
            shape: vec![elements],
        };
        let part = |is_transposed| WeightPart {
            file: PathBuf::new(),
            start: 0,
            meta: meta(0),
            is_transposed,
        };
        let source = |elements, is_transposed| {
            let parts = vec![part(is_transposed)];
            WeightSource { meta: meta(elements), parts }
        };
        let sources = [
            ("a", source(1 << 20, false)),
            ("b", source((2 << 20) + 5, false)),
            ("c", source(8 << 20, true)),
        ];
        let sources = sources.map(|(name, source)| (name.to_string(), source));
        let (folder, stamps) = (PathBuf::new(), BTreeMap::new());
        let files = WeightFiles { folder, sources: sources.into(), stamps };
        let shown =
            |one: &Unread<Piece>| format!("{} {:?} {}", one.name, one.place.elements, one.bytes);
        let pieces: Vec<String> = files.pieces().iter().map(shown).collect();
        let expected = [
            "a None 4194304",
            "slice/b[0] Some(0..1048576) 4194304",
            "slice/b[1048576] Some(1048576..2097152) 4194304",
            "slice/b[2097152] Some(2097152..2097157) 20",
            "c None 33554432",
        ];
        assert_eq!(pieces, expected);
    }
}
