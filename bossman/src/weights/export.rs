//! Writes weights for other programs: in one file or several, as another floating-point type.

use crate::{BossManError, Model, StateDict};
use std::path::Path;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// The form in which weights are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportSettings {
    /// The type of floating-point tensors. `None` leaves them as they are, or as they were in the
    /// folder that they go back to.
    pub dtype: Option<Kind>,
    /// The most bytes of tensors in a file. `None` is one file, or files of 5 GB for Hugging Face.
    pub max_shard_bytes: Option<u64>,
}

/// Writes a model's weights to a safetensors file, or with `max_shard_bytes` to a folder of several
/// and their index, as Hugging Face's libraries read it. The weights are checked against the model
/// first.
///
/// # Errors
/// The weights do not fit the model (every difference is listed), or a file cannot be written.
pub fn export(
    weights: &StateDict,
    model: &Model,
    to: &Path,
    settings: &ExportSettings,
) -> Result<StateDict, BossManError> {
    let mut whole = weights.fit_to(model.graph())?;
    if settings.dtype.is_some() {
        let mut converted = StateDict::default();
        for (name, tensor) in whole.iter() {
            converted.insert(name, &to_type(tensor, settings.dtype)?);
        }
        whole = converted;
    }
    match settings.max_shard_bytes {
        Some(most) => whole.save_sharded(to, most)?,
        None => {
            StateDict::can_save(to)?;
            whole.save(to)?;
        }
    }
    Ok(whole)
}

/// A tensor as this type, if it is floating-point. `None` leaves it as it is.
pub(super) fn to_type(tensor: &Tensor, dtype: Option<Kind>) -> Result<Tensor, BossManError> {
    match dtype.filter(|_| tensor.is_floating_point()) {
        Some(kind) => Ok(tensor.f_to_kind(kind).map_err(TensorError::from)?),
        None => Ok(tensor.shallow_clone()),
    }
}
