//! Weights to start from that stay in their files until a worker needs them.

use crate::weights::fit::Fit;
use crate::weights::rename_rules::{RenameRules, Source};
use crate::weights::tensor_headers::TensorHeaders;
use crate::{BossManError, Model};
use ::data::{HashedWeight, WeightPart, WeightSource};
use pipeline::StateDigest;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tch::Tensor;

/// The bytes of weights that are read together. A larger weight is read alone.
const CHUNK_BYTES: u64 = 16 << 20;

/// The places of a model's parameters and buffers in safetensors files.
#[derive(Clone, Debug)]
pub(crate) struct WeightFiles {
    /// The folder of the files.
    folder: PathBuf,
    sources: BTreeMap<String, WeightSource>,
}

impl WeightFiles {
    /// Finds the parameters in the headers of the files at `path`.
    ///
    /// # Errors
    /// A file cannot be read, or the tensors are not those of the model. All differences are
    /// listed.
    pub(crate) fn find(
        path: &Path,
        rename: &RenameRules,
        model: &Model,
    ) -> Result<Self, BossManError> {
        let headers = TensorHeaders::read(path)?;
        let fresh = rename.fresh_parameters(model);
        let Fit { sources, tied, mut problems, .. } =
            Fit::of(model.graph(), &headers, rename, &fresh);
        for (name, owner) in tied {
            if headers.differ(&name, &owner)? {
                problems.push(format!(
                    "`{name}`: tied to `{owner}` in the model, but different in the weights"
                ));
            }
        }
        if !problems.is_empty() {
            return Err(BossManError::StateDict(problems));
        }
        let expected = crate::weights::state_dict::expected(model.graph()).owned;
        let mut found = BTreeMap::new();
        for (name, of_one) in sources {
            let parts = of_one.iter().filter_map(|source| part(source, &headers)).collect();
            if let Some(expected) = expected.get(&name) {
                found.insert(name, WeightSource { meta: expected.meta.clone(), parts });
            }
        }
        Ok(WeightFiles { folder: headers.folder().to_path_buf(), sources: found })
    }

    /// The digest of the weights, that of [`crate::StateDict::digest`]. Reads all files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn digest(&self) -> Result<StateDigest, BossManError> {
        let hash = |(name, source): (&String, &WeightSource)| {
            Ok((name.clone(), source.hash(&self.folder)?))
        };
        let hashes = self.sources.iter().map(hash).collect::<Result<_, BossManError>>()?;
        Ok(StateDigest::of(&hashes))
    }

    /// Descriptions of the weights for workers that have the same files. Reads all files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn hashed(&self) -> Result<Vec<HashedWeight>, BossManError> {
        let describe = |(name, source): (&String, &WeightSource)| {
            let hash = source.hash(&self.folder)?;
            Ok(HashedWeight { name: name.clone(), source: source.clone(), hash })
        };
        self.sources.iter().map(describe).collect()
    }

    /// The names of the weights in chunks that are read together.
    pub(crate) fn chunks(&self) -> Vec<Vec<String>> {
        let (mut chunks, mut bytes) = (vec![Vec::new()], 0u64);
        for (name, source) in &self.sources {
            let of_one = source.meta.byte_len().unwrap_or(0);
            if bytes > 0 && bytes.saturating_add(of_one) > CHUNK_BYTES {
                chunks.push(Vec::new());
                bytes = 0;
            }
            bytes = bytes.saturating_add(of_one);
            if let Some(last) = chunks.last_mut() {
                last.push(name.clone());
            }
        }
        chunks
    }

    /// Reads some of the weights.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn read(&self, names: &[String]) -> Result<Vec<(String, Tensor)>, BossManError> {
        let sources = names.iter().filter_map(|name| self.sources.get_key_value(name));
        let read = |(name, source): (&String, &WeightSource)| {
            Ok((name.clone(), source.read(&self.folder)?))
        };
        sources.map(read).collect()
    }
}

/// The place of a tensor that a parameter is made of.
fn part(source: &Source, headers: &TensorHeaders) -> Option<WeightPart> {
    let (file, start, meta) = headers.place(&source.name)?;
    Some(WeightPart {
        file: file.file_name()?.into(),
        start,
        meta: meta.clone(),
        is_transposed: source.is_transposed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let names: Vec<String> = files.chunks().concat();
        assert_eq!(names, ["a.bias", "a.weight", "b.weight"]);
        for (name, tensor) in files.read(&names).unwrap() {
            assert!(tensor.equal(expected.get(&name).unwrap()), "{name}");
        }
        for weight in files.hashed().unwrap() {
            let tensor = weight.read(place.path()).unwrap();
            assert!(tensor.equal(expected.get(&weight.name).unwrap()), "{}", weight.name);
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
    fn chunks_are_bounded() {
        let meta = |elements: u64| pipeline::TensorMeta {
            dtype: layerspec::DType::Float32,
            shape: vec![elements],
        };
        let sources = [("a", 1 << 20), ("b", 3 << 20), ("c", 1), ("d", 1 << 30), ("e", 1)];
        let source = |elements| WeightSource { meta: meta(elements), parts: Vec::new() };
        let sources = sources.map(|(name, elements)| (name.to_string(), source(elements)));
        let files = WeightFiles { folder: PathBuf::new(), sources: sources.into() };
        assert_eq!(files.chunks(), [vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"]]);
    }
}
