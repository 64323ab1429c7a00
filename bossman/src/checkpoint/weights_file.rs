//! Weights that are written to a safetensors file while they arrive.

use super::arrivals::Arrivals;
use super::draft::Draft;
use super::layout::{nan_problem, wrong};
use crate::data::tensor_payload::has_nan;
use crate::weights::safetensors_files::{header, Header};
use crate::{BossManError, StateDict};
use link::Payload;
use pipeline::{StateName, TensorMeta};
use std::collections::BTreeMap;
use std::path::Path;

/// The file. It appears whole under its name when it is finished, or not at all. Its methods block.
pub(crate) struct WeightsFile {
    draft: Draft,
    tensors: BTreeMap<String, Place>,
}

/// A tensor of the file.
struct Place {
    /// Its first byte in the file.
    start: u64,
    arrivals: Arrivals,
}

impl WeightsFile {
    /// Begins a file of these tensors, as [`StateDict::save`] would write it.
    ///
    /// # Errors
    /// The file cannot be written there.
    pub(crate) fn begin<'a>(
        path: &Path,
        tensors: impl Iterator<Item = (&'a str, &'a TensorMeta)> + Clone,
    ) -> Result<Self, BossManError> {
        StateDict::can_save(path)?;
        let Header { bytes, starts, file_bytes } = header(tensors.clone())?;
        let metas: BTreeMap<&str, &TensorMeta> = tensors.collect();
        let place = |(name, start): (String, u64)| {
            let unknown = || wrong(&name, "has no place");
            let meta = metas.get(name.as_str()).copied().ok_or_else(unknown)?;
            let arrivals = Arrivals::of_tensor(meta.clone());
            let arrivals = arrivals.map_err(|problem| wrong(&name, &problem))?;
            Ok((name, Place { start, arrivals }))
        };
        let tensors = starts.into_iter().map(place).collect::<Result<_, BossManError>>()?;
        let draft = Draft::unhashed(path.to_path_buf(), bytes, file_bytes);
        Ok(WeightsFile { draft, tensors })
    }

    /// Adds a tensor or a slice, under a name of [`StateName`].
    ///
    /// # Errors
    /// It is none of the file or came before, it has NaN, or the file cannot be written.
    pub(crate) fn add(&mut self, name: &str, payload: &Payload) -> Result<(), BossManError> {
        let StateName { optimizer, name: of, start } = StateName::parse(name);
        let place = self.tensors.get_mut(of).filter(|_| !optimizer);
        let place = place.ok_or_else(|| wrong(name, "was not asked for"))?;
        if has_nan(payload) {
            return Err(self.draft.error(&nan_problem(of)));
        }
        let at = place.arrivals.accept(start, payload);
        match at.map_err(|problem| wrong(name, &problem))? {
            Some(at) => self.draft.write(place.start + at, &payload.bytes),
            None => Ok(()),
        }
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// A tensor is not whole, or the file cannot be written.
    pub(crate) fn finish(self) -> Result<(), BossManError> {
        let missing = self.tensors.iter().filter(|(_, place)| !place.arrivals.is_whole());
        let problems: Vec<String> = missing
            .map(|(name, place)| format!("`{name}`: {}", place.arrivals.missing()))
            .collect();
        match problems.is_empty() {
            true => self.draft.complete().map(drop),
            false => Err(BossManError::StateDict(problems)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tensor_payload::{meta_of, to_payload};
    use pipeline::slices;
    use tch::{Device, Kind, Tensor};

    fn state() -> StateDict {
        let mut state = StateDict::default();
        let numbers = |count| Tensor::arange(count, (Kind::Float, Device::Cpu));
        state.insert("b.weight", &numbers(35).reshape([5, 7]));
        state.insert("a.count", &Tensor::from(7i64));
        state.insert("a.empty", &numbers(0).reshape([0, 3]));
        state
    }

    /// The tensors in slices of two numbers.
    fn parts(state: &StateDict) -> Vec<(String, Payload)> {
        let mut parts = Vec::new();
        for (name, tensor) in state.iter() {
            let payload = to_payload(tensor).unwrap();
            for slice in slices(name, &payload.meta, 8) {
                let bytes = payload.bytes.slice(slice.bytes);
                parts.push((slice.name, Payload { meta: slice.meta, bytes }));
            }
        }
        parts
    }

    fn begin(path: &Path, state: &StateDict) -> WeightsFile {
        let metas: Vec<(&str, TensorMeta)> =
            state.iter().map(|(name, tensor)| (name, meta_of(tensor).unwrap())).collect();
        WeightsFile::begin(path, metas.iter().map(|(name, meta)| (*name, meta))).unwrap()
    }

    #[test]
    fn parts_in_any_order_make_the_file_that_a_state_dict_makes() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("w.safetensors");
        state().save(&path).unwrap();
        let expected = std::fs::read(&path).unwrap();
        let mut file = begin(&path, &state());
        for (name, payload) in parts(&state()).iter().rev() {
            file.add(name, payload).unwrap();
        }
        std::fs::write(&path, "older").unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn weights_with_nan_leave_the_older_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("w.safetensors");
        std::fs::write(&path, "older").unwrap();
        let mut state = state();
        let _ = state.0.get_mut("b.weight").unwrap().get(3).fill_(f64::NAN);
        let mut file = begin(&path, &state);
        let added =
            parts(&state).iter().map(|(name, part)| file.add(name, part)).find(Result::is_err);
        let error = added.unwrap().unwrap_err().to_string();
        assert!(
            error.contains("w.safetensors: is not written, because `b.weight` has NaN; lower"),
            "{error}"
        );
        drop(file);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "older");
    }

    #[test]
    fn a_file_that_is_not_whole_leaves_the_older_one() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("w.safetensors");
        std::fs::write(&path, "older").unwrap();
        let mut file = begin(&path, &state());
        let parts = parts(&state());
        for (name, payload) in &parts[..parts.len() - 1] {
            file.add(name, payload).unwrap();
        }
        let (name, payload) = &parts[3];
        let twice = file.add(name, payload).unwrap_err().to_string();
        assert!(twice.contains("came twice"), "{twice}");
        let strange = file.add("optimizer/b.weight", payload).unwrap_err().to_string();
        assert!(strange.contains("was not asked for"), "{strange}");
        let missing = file.finish().unwrap_err().to_string();
        assert!(missing.contains("`b.weight`: elements 34 to 35 are missing"), "{missing}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "older");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "no draft is left");
    }
}
