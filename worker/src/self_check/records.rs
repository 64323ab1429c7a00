//! What PyTorch computes for each kind of layer: the files of tests/layers, which the program
//! contains.

use bytes::Bytes;
use layerspec::DType;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use tch::Tensor;
use tensor::{payload, TensorError};

/// The files as worker/build.rs packs them.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/recorded_layers"));

/// Tensors as tests/layers/README.md names them.
pub(crate) type Named = BTreeMap<String, Tensor>;

/// The layers that are recorded.
///
/// # Errors
/// The program was built of broken files.
pub(crate) fn cases() -> Result<Vec<Json>, TensorError> {
    serde_json::from_slice(file("cases.json")?).map_err(|e| broken(format!("cases.json: {e}")))
}

/// The tensors of the case of this name.
///
/// # Errors
/// There is no such case, or the program was built of broken files.
pub(crate) fn recorded(case: &str) -> Result<Named, TensorError> {
    read(file(&format!("{case}.safetensors"))?)
}

/// Reads the tensors of a safetensors file.
///
/// # Errors
/// It is none, or has numbers other than float32 and int64.
pub(crate) fn read(file: &[u8]) -> Result<Named, TensorError> {
    let tensors = SafeTensors::deserialize(file).map_err(|e| broken(e.to_string()))?;
    let tensors = tensors.iter().map(|(name, view)| Ok((name.to_owned(), tensor_of(&view)?)));
    tensors.collect()
}

/// The tensors of one sort, by number or name.
pub(crate) fn of<'a>(named: &'a Named, sort: &str) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
    let sort = format!("{sort}.");
    named.iter().filter_map(move |(name, tensor)| Some((name.strip_prefix(&sort)?, tensor)))
}

fn tensor_of(view: &TensorView<'_>) -> Result<Tensor, TensorError> {
    let dtype = match view.dtype() {
        Dtype::F32 => DType::Float32,
        Dtype::I64 => DType::Int64,
        other => return Err(broken(format!("numbers of type {other:?}"))),
    };
    let size = |size: &usize| i64::try_from(*size).map_err(|e| broken(e.to_string()));
    let shape = view.shape().iter().map(size).collect::<Result<Vec<_>, _>>()?;
    // A copy, because layers may write to their inputs, and the program's own bytes are read-only.
    payload::from_bytes(dtype, &shape, Bytes::copy_from_slice(view.data()))
}

fn file(name: &str) -> Result<&'static [u8], TensorError> {
    let found = files(PACKED).find(|(its, _)| *its == name);
    found.map(|(_, bytes)| bytes).ok_or_else(|| broken(format!("there is no {name}")))
}

/// The packed files with their names.
fn files(packed: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    let mut rest = packed;
    std::iter::from_fn(move || {
        let name = std::str::from_utf8(take(&mut rest)?).ok()?;
        Some((name, take(&mut rest)?))
    })
}

/// Takes bytes that follow their number.
fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let all = *rest;
    let (length, after) = all.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (taken, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn broken(problem: String) -> TensorError {
    TensorError::invalid("the recorded layers", problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_tensors() {
        let cases = cases().unwrap();
        assert_eq!(files(PACKED).count(), cases.len() + 1);
        for case in cases {
            let name = case["name"].as_str().unwrap();
            assert!(of(&recorded(name).unwrap(), "output").next().is_some(), "{name}");
        }
        let error = recorded("no-such-layer").unwrap_err();
        assert_eq!(error.to_string(), "the recorded layers: there is no no-such-layer.safetensors");
    }

    #[test]
    fn files_that_are_cut_short_end_the_list() {
        for length in [0, 3, 4, 10, 20] {
            assert_eq!(files(&PACKED[..length]).count(), 0, "{length} bytes");
        }
        assert!(read(b"no tensors").is_err());
    }
}
