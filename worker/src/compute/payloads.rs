//! Tensors as the bytes that travel between workers.

use bytes::Bytes;
use layerspec::DType;
use link::Payload;
use pipeline::TensorMeta;
use tch::Tensor;
use tensor::{payload, TensorError};

pub(crate) fn to_payload(tensor: &Tensor) -> Result<Payload, TensorError> {
    Ok(Payload { meta: meta_of(tensor)?, bytes: payload::to_bytes(tensor)? })
}

pub(crate) fn meta_of(tensor: &Tensor) -> Result<TensorMeta, TensorError> {
    let dtype: DType = tensor::dtype_of(tensor)?;
    let shape = tensor.size().into_iter().map(|d| d.unsigned_abs()).collect();
    Ok(TensorMeta { dtype, shape })
}

/// The meta of a hash of a tensor.
pub(crate) fn hash_meta() -> TensorMeta {
    TensorMeta { dtype: DType::UInt8, shape: vec![32] }
}

pub(crate) fn hash_payload(hash: [u8; 32]) -> Payload {
    Payload { meta: hash_meta(), bytes: Bytes::copy_from_slice(&hash) }
}
