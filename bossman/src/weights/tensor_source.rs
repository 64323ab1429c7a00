//! Tensors by name whose elements are read when they are needed, some at a time. So a file can be
//! written of tensors that are larger than the memory.

use crate::data::tensor_payload::meta_of;
use crate::weights::shown_text::shown;
use crate::{BossManError, StateDict};
use layerspec::DType;
use pipeline::TensorMeta;
use std::collections::BTreeMap;
use std::ops::Range;
use tch::Tensor;
use tensor::TensorError;

/// Tensors by name, in memory or in files.
pub(crate) trait TensorSource {
    /// The type and the shape of each tensor. Reads no elements.
    ///
    /// # Errors
    /// A tensor has a type that is in no file.
    fn metas(&self) -> Result<BTreeMap<String, TensorMeta>, BossManError>;

    /// Whether elements of a tensor are read without the others.
    fn has_slices(&self, name: &str) -> bool;

    /// Elements of a tensor, in row-major order, as a tensor of one dimension.
    ///
    /// # Errors
    /// There is no such tensor, or a file cannot be read or has changed.
    fn elements(&self, name: &str, elements: Range<u64>) -> Result<Tensor, BossManError>;
}

impl TensorSource for StateDict {
    fn metas(&self) -> Result<BTreeMap<String, TensorMeta>, BossManError> {
        self.iter().map(|(name, tensor)| Ok((name.to_string(), meta_of(tensor)?))).collect()
    }

    fn has_slices(&self, name: &str) -> bool {
        // Others are copied to be flat.
        self.get(name).is_some_and(Tensor::is_contiguous)
    }

    fn elements(&self, name: &str, elements: Range<u64>) -> Result<Tensor, BossManError> {
        let tensor = self.get(name).ok_or_else(|| missing(name))?;
        let flat = tensor.f_flatten(0, -1).map_err(TensorError::from)?;
        narrowed(&flat, elements)
    }
}

/// The error for a tensor that a source does not have.
pub(super) fn missing(name: &str) -> BossManError {
    BossManError::StateDict(vec![format!("`{}`: missing", shown(name))])
}

/// The number of elements. 0 if there are too many for any memory.
pub(super) fn element_count(meta: &TensorMeta) -> u64 {
    meta.byte_len().unwrap_or(0) / meta.dtype.size_bytes()
}

/// Some elements of a tensor of one dimension. They share its memory.
pub(super) fn narrowed(flat: &Tensor, elements: Range<u64>) -> Result<Tensor, BossManError> {
    let count = elements.end.saturating_sub(elements.start).cast_signed();
    let part = flat.f_narrow(0, elements.start.cast_signed(), count);
    Ok(part.map_err(TensorError::from)?)
}

/// A tensor with this name as this type.
pub(super) fn as_type(name: &str, tensor: &Tensor, dtype: DType) -> Result<Tensor, BossManError> {
    let wrong = |e| BossManError::StateDict(vec![format!("`{}`: {e}", shown(name))]);
    tensor::converted(tensor, dtype).map_err(wrong)
}

/// Elements in this shape.
pub(super) fn shaped(flat: &Tensor, shape: &[u64]) -> Result<Tensor, BossManError> {
    let shape: Vec<i64> = shape.iter().map(|size| size.cast_signed()).collect();
    Ok(flat.f_reshape(&shape[..]).map_err(TensorError::from)?)
}

/// Reads all tensors into memory. Those that are there already are shared.
///
/// # Errors
/// A file cannot be read.
pub(super) fn collect(tensors: &dyn TensorSource) -> Result<StateDict, BossManError> {
    let mut state = StateDict::default();
    for (name, meta) in tensors.metas()? {
        let flat = tensors.elements(&name, 0..element_count(&meta))?;
        state.insert(&name, &shaped(&flat, &meta.shape)?);
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn elements_are_those_of_the_tensor_in_its_order() {
        let numbers = Tensor::arange(6, (Kind::Float, Device::Cpu)).reshape([2, 3]);
        let mut state = StateDict::default();
        state.insert("a", &numbers);
        state.insert("empty", &numbers.slice(0, 0, 0, 1));
        state.insert("scalar", &numbers.get(1).get(1));
        state.insert("turned", &numbers.tr());
        assert!(state.has_slices("a") && !state.has_slices("turned") && !state.has_slices("b"));
        for (name, elements, expected) in
            [("a", 1..5, vec![1.0, 2.0, 3.0, 4.0]), ("turned", 1..4, vec![3.0, 1.0, 4.0])]
        {
            let found = state.elements(name, elements).unwrap();
            assert_eq!(Vec::<f32>::try_from(found).unwrap(), expected, "{name}");
        }
        let error = state.elements("b", 0..1).unwrap_err().to_string();
        assert!(error.contains("`b`: missing"), "{error}");
        let collected = collect(&state).unwrap();
        assert_eq!(collected.iter().count(), 4);
        for (name, tensor) in state.iter() {
            let found = collected.get(name).unwrap();
            assert!(found.size() == tensor.size() && found.equal(tensor), "{name}");
        }
    }
}
