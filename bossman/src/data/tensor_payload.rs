//! Converts tensors to bytes for the network, and back.

use crate::BossManError;
use link::Payload;
use pipeline::TensorMeta;
use tch::Tensor;
use tensor::TensorError;

pub(crate) fn to_payload(tensor: &Tensor) -> Result<Payload, BossManError> {
    Ok(Payload { meta: meta_of(tensor)?, bytes: tensor::payload::to_bytes(tensor)? })
}

/// The dtype and the shape.
pub(crate) fn meta_of(tensor: &Tensor) -> Result<TensorMeta, BossManError> {
    let shape = tensor.size().into_iter().map(i64::unsigned_abs).collect();
    Ok(TensorMeta { dtype: tensor::dtype_of(tensor)?, shape })
}

/// As [`from_payload`], in memory of its own. What comes from workers may lie in memory that is
/// shared with them and cannot be written, and whose place they need again.
pub(crate) fn owned_from_payload(payload: &Payload) -> Result<Tensor, BossManError> {
    Ok(from_payload(payload)?.f_detach_copy().map_err(TensorError::from)?)
}

pub(crate) fn from_payload(payload: &Payload) -> Result<Tensor, BossManError> {
    let too_large =
        |d: &u64| BossManError::Usage(format!("a worker sent a tensor with a size of {d}"));
    let sizes = payload.meta.shape.iter().map(|d| i64::try_from(*d).map_err(|_| too_large(d)));
    let shape = sizes.collect::<Result<Vec<_>, _>>()?;
    Ok(tensor::payload::from_bytes(payload.meta.dtype, &shape, payload.bytes.clone())?)
}
