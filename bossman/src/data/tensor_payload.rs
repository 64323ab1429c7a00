//! Converts tensors to bytes for the network, and back.

use crate::BossManError;
use link::Payload;
use pipeline::TensorMeta;
use tch::Tensor;

pub(crate) fn to_payload(tensor: &Tensor) -> Result<Payload, BossManError> {
    let shape = tensor.size().into_iter().map(i64::unsigned_abs).collect();
    let meta = TensorMeta { dtype: tensor::dtype_of(tensor)?, shape };
    Ok(Payload { meta, bytes: tensor::payload::to_bytes(tensor)? })
}

pub(crate) fn from_payload(payload: &Payload) -> Result<Tensor, BossManError> {
    let too_large =
        |d: &u64| BossManError::Usage(format!("a worker sent a tensor with a size of {d}"));
    let sizes = payload.meta.shape.iter().map(|d| i64::try_from(*d).map_err(|_| too_large(d)));
    let shape = sizes.collect::<Result<Vec<_>, _>>()?;
    Ok(tensor::payload::from_bytes(payload.meta.dtype, &shape, payload.bytes.clone())?)
}
