//! Helpers that several modules share: checks of inputs, and operations in place.

use crate::engine::error::layer_error;
use tch::Tensor;
use tensor::{memory, TensorError};

/// The input of an op that takes one.
pub(crate) fn single_input(inputs: Vec<Tensor>) -> Result<Tensor, TensorError> {
    let count = inputs.len();
    match <[Tensor; 1]>::try_from(inputs) {
        Ok([input]) => Ok(input),
        Err(_) => Err(layer_error(format!("expected one input, got {count}"))),
    }
}

/// The gradient of an op with one output.
pub(crate) fn single_grad(grads: Vec<Option<Tensor>>) -> Result<Tensor, TensorError> {
    grads.into_iter().next().flatten().ok_or_else(|| layer_error("no gradient arrived"))
}

/// The input of a layer that takes one.
pub(crate) fn single_input_ref(inputs: &[Tensor]) -> Result<&Tensor, TensorError> {
    match inputs {
        [input] => Ok(input),
        _ => Err(layer_error(format!("expected one input, got {}", inputs.len()))),
    }
}

/// The inputs of a layer that takes two.
pub(crate) fn two_inputs(inputs: &[Tensor]) -> Result<[&Tensor; 2], TensorError> {
    match inputs {
        [left, right] => Ok([left, right]),
        _ => Err(layer_error(format!("expected two inputs, got {}", inputs.len()))),
    }
}

/// A copy of a tensor, repeated along its first dimension.
pub(crate) fn repeated(tensor: &Tensor, times: i64) -> Result<Tensor, TensorError> {
    let mut repeats = vec![1; tensor.dim()];
    if let Some(first) = repeats.first_mut() {
        *first = times;
    }
    Ok(tensor.f_repeat(&repeats[..])?)
}

/// The number of samples of an input.
pub(crate) fn batch_of(input: &Tensor) -> i64 {
    input.size().first().copied().unwrap_or(1)
}

/// Calls `in_place` if the tensor has no other reference, otherwise `fresh`.
pub(crate) fn in_place_or_fresh<T>(
    mut tensor: Tensor,
    in_place: impl FnOnce(&mut Tensor) -> Result<T, tch::TchError>,
    fresh: impl FnOnce(&Tensor) -> Result<Tensor, tch::TchError>,
) -> Result<Tensor, TensorError> {
    if memory::is_uniquely_owned(&tensor) {
        in_place(&mut tensor)?;
        return Ok(tensor);
    }
    Ok(fresh(&tensor)?)
}
