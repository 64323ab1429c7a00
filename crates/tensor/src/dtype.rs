//! BossMan's dtypes and tch's kinds: the same things under two names.

use crate::TensorError;
use layerspec::DType;
use tch::{Kind, Tensor};

/// tch's name for a dtype.
pub const fn kind_of(dtype: DType) -> Kind {
    match dtype {
        DType::Float32 => Kind::Float,
        DType::Float64 => Kind::Double,
        DType::Float16 => Kind::Half,
        DType::BFloat16 => Kind::BFloat16,
        DType::Int64 => Kind::Int64,
        DType::Int32 => Kind::Int,
        DType::UInt8 => Kind::Uint8,
        DType::Bool => Kind::Bool,
    }
}

/// The dtype of a tensor, or an error for a kind that BossMan does not carry (complex, quantized,
/// int8, int16, float8).
pub fn dtype_of(tensor: &Tensor) -> Result<DType, TensorError> {
    match tensor.f_kind()? {
        Kind::Float => Ok(DType::Float32),
        Kind::Double => Ok(DType::Float64),
        Kind::Half => Ok(DType::Float16),
        Kind::BFloat16 => Ok(DType::BFloat16),
        Kind::Int64 => Ok(DType::Int64),
        Kind::Int => Ok(DType::Int32),
        Kind::Uint8 => Ok(DType::UInt8),
        Kind::Bool => Ok(DType::Bool),
        other => Err(TensorError::UnsupportedKind(format!("{other:?}"))),
    }
}
