//! Tensors as the bytes that travel between workers.

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
