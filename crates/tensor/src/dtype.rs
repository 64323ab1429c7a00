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

/// Converts a tensor to another type. It is shared if it has that type.
///
/// # Errors
/// The type has no room for a finite number, which would become infinite.
pub fn converted(tensor: &Tensor, to: DType) -> Result<Tensor, TensorError> {
    let turned = tensor.f_to_kind(kind_of(to))?;
    let from = dtype_of(tensor)?;
    let has_room = from == to
        || !from.is_floating()
        || !to.is_floating()
        || to == DType::Float64
        || from == DType::Float16;
    let overflows = || -> Result<bool, TensorError> {
        let infinite = turned.f_isinf()?.f_logical_and(&tensor.f_isfinite()?)?;
        Ok(infinite.f_any()?.f_int64_value(&[])? != 0)
    };
    match !has_room && overflows()? {
        false => Ok(turned),
        true => {
            let problem = format!("it has a number that is larger than any {to}");
            Err(TensorError::invalid(format!("from {from} to {to}"), problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_a_type_cannot_hold_is_an_error() {
        let large = Tensor::from_slice(&[1e300, f64::INFINITY, f64::NAN, 1.0]);
        let error = converted(&large, DType::Float32).unwrap_err().to_string();
        let expected = "from float64 to float32: it has a number that is larger than any float32";
        assert_eq!(error, expected);
        converted(&large, DType::BFloat16).unwrap_err();
        let medium = Tensor::from_slice(&[-70_000f32, 1e-30]);
        converted(&medium, DType::Float16).unwrap_err();
        for (tensor, to) in [
            (&medium, DType::BFloat16),
            (&medium, DType::Float64),
            (&Tensor::from_slice(&[f32::INFINITY, f32::NAN, 65504.0]), DType::Float16),
            (&Tensor::from_slice(&[1i64 << 40]), DType::Float32),
        ] {
            assert_eq!(dtype_of(&converted(tensor, to).unwrap()), Ok(to));
        }
    }
}
