//! Converts tensors to bytes for the network, and back.

use crate::BossManError;
use layerspec::DType;
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

/// The bytes that are looked at together.
const BLOCK: usize = 1 << 12;

/// Whether a floating-point tensor, or a slice of one, has NaN.
pub(crate) fn has_nan(payload: &Payload) -> bool {
    let any = |block: fn(&[u8]) -> bool| payload.bytes.chunks(BLOCK).any(block);
    match payload.meta.dtype {
        DType::Float32 => any(|block| {
            let all = block.as_chunks().0.iter();
            all.fold(false, |found, number| found | f32::from_le_bytes(*number).is_nan())
        }),
        DType::Float64 => any(|block| {
            let all = block.as_chunks().0.iter();
            all.fold(false, |found, number| found | f64::from_le_bytes(*number).is_nan())
        }),
        DType::Float16 => any(|block| has_above(block, 0x7c00)),
        DType::BFloat16 => any(|block| has_above(block, 0x7f80)),
        DType::Int64 | DType::Int32 | DType::UInt8 | DType::Bool => false,
    }
}

/// Whether a number of 16 bits without its sign lies above infinity.
fn has_above(block: &[u8], infinity: u16) -> bool {
    let all = block.as_chunks().0.iter();
    all.fold(false, |found, number| found | (u16::from_le_bytes(*number) & 0x7fff > infinity))
}

pub(crate) fn from_payload(payload: &Payload) -> Result<Tensor, BossManError> {
    let too_large =
        |d: &u64| BossManError::Usage(format!("a worker sent a tensor with a size of {d}"));
    let sizes = payload.meta.shape.iter().map(|d| i64::try_from(*d).map_err(|_| too_large(d)));
    let shape = sizes.collect::<Result<Vec<_>, _>>()?;
    Ok(tensor::payload::from_bytes(payload.meta.dtype, &shape, payload.bytes.clone())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn nan_is_found_in_numbers_of_each_kind() {
        for kind in [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16] {
            let numbers = Tensor::zeros([5000], (kind, Device::Cpu));
            let _ = numbers.get(1).fill_(f64::NEG_INFINITY);
            let _ = numbers.get(2).fill_(f64::INFINITY);
            assert!(!has_nan(&to_payload(&numbers).unwrap()), "{kind:?}");
            let _ = numbers.get(4999).fill_(f64::NAN);
            assert!(has_nan(&to_payload(&numbers).unwrap()), "{kind:?}");
            let _ = numbers.get(4999).fill_(-f64::NAN);
            assert!(has_nan(&to_payload(&numbers).unwrap()), "{kind:?}");
        }
        let numbers = Tensor::full([9], -1, (Kind::Int64, Device::Cpu));
        assert!(!has_nan(&to_payload(&numbers).unwrap()));
    }
}
