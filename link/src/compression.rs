//! Gradients in fewer bits, for the way between replicas.
//!
//! - bf16: each number rounded to nearest, ties to even.
//! - int8: blocks of 256 numbers, `| scale: f32 LE | a signed byte for each |`, the last block as long as it comes. The scale
//!   is the largest absolute value / 127 (absmax quantization by blocks, Dettmers et al. 2022; evenly spaced levels here).
//!
//! A number that is not finite stays so: in bf16 by itself, in int8 with its whole block, which is then NaN. What rounding
//! lost of a number is its value before less what the other end reads; nothing where that is no finite number.

use crate::payload::Payload;
use layerspec::DType;
use pipeline::replicas::Compress;
use pipeline::TensorMeta;

pub(crate) const BLOCK: usize = Compress::BLOCK;
const SCALE: usize = Compress::SCALE;
const FLOAT: usize = size_of::<f32>();
/// Blocks without a larger number are sent as zeros, for `127 / it` must be finite: they are lost, and so come later.
const SMALLEST: f32 = 1e-30;
/// 1.5 x 2^23: added to a number below 2^22 it rounds that to a whole one, ties to even, which then stands in the low bits.
const ROUNDING: f32 = 12_582_912.0;
const LARGEST: f32 = 127.0;
const NOT_FINITE: u32 = 0x7f80_0000;

/// How a slice lies.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Form {
    F32,
    Bf16,
    Int8,
}

impl Form {
    /// Bytes of a whole block.
    fn block(self) -> usize {
        match self {
            Form::F32 => BLOCK * FLOAT,
            Form::Bf16 => BLOCK * 2,
            Form::Int8 => BLOCK + SCALE,
        }
    }
}

/// A slice of gradients, in whatever form.
pub(crate) struct Coded<'a> {
    form: Form,
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Coded<'a> {
    /// What came, checked; nothing where it says that there is no gradient, by its shape `[0]`.
    pub(crate) fn read(payload: &'a Payload) -> Result<Option<Self>, String> {
        let Payload { meta, bytes } = payload;
        let wrong = || format!("a slice of {meta} in {} bytes", bytes.len());
        let form = match meta.dtype {
            DType::Float32 => Form::F32,
            DType::BFloat16 => Form::Bf16,
            DType::UInt8 => Form::Int8,
            _ => return Err(wrong()),
        };
        let whole = meta.byte_len().and_then(|len| usize::try_from(len).ok()) == Some(bytes.len());
        if meta.shape.len() != 1 || !whole {
            return Err(wrong());
        }
        let len = match form {
            Form::F32 => bytes.len() / FLOAT,
            Form::Bf16 => bytes.len() / 2,
            Form::Int8 => {
                let (blocks, rest) = (bytes.len() / form.block(), bytes.len() % form.block());
                match rest {
                    0 => blocks * BLOCK,
                    // A scale, or part of one, without numbers.
                    1..=SCALE => return Err(wrong()),
                    _ => blocks * BLOCK + rest - SCALE,
                }
            }
        };
        Ok((len > 0).then_some(Coded { form, bytes, len }))
    }

    /// How many numbers it has.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds the numbers of one of its blocks.
    pub(crate) fn add(&self, block: usize, sum: &mut [f32]) {
        let bytes = self.bytes.chunks(self.form.block()).nth(block).unwrap_or_default();
        match self.form {
            Form::F32 => {
                for (sum, float) in sum.iter_mut().zip(bytes.chunks_exact(FLOAT)) {
                    *sum += f32::from_le_bytes([float[0], float[1], float[2], float[3]]);
                }
            }
            Form::Bf16 => {
                for (sum, half) in sum.iter_mut().zip(bytes.chunks_exact(2)) {
                    *sum += f32::from_bits(u32::from(u16::from_le_bytes([half[0], half[1]])) << 16);
                }
            }
            Form::Int8 => {
                let Some((scale, bytes)) = bytes.split_first_chunk::<SCALE>() else { return };
                let scale = f32::from_le_bytes(*scale);
                for (sum, byte) in sum.iter_mut().zip(bytes) {
                    *sum += f32::from(byte.cast_signed()) * scale;
                }
            }
        }
    }
}

/// How so many numbers are told of in this form, and in how many bytes.
pub(crate) fn meta(compress: Compress, len: usize) -> (TensorMeta, usize) {
    let bytes = compress.bytes(len as u64);
    let (dtype, size) = match compress {
        Compress::Bf16 => (DType::BFloat16, len as u64),
        Compress::Int8 => (DType::UInt8, bytes),
    };
    (TensorMeta { dtype, shape: vec![size] }, usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Writes a block in this form; what that loses of the numbers is left in their place.
pub(crate) fn put(compress: Compress, numbers: &mut [f32], bytes: &mut [u8]) {
    match compress {
        Compress::Bf16 => put_bf16(numbers, bytes),
        Compress::Int8 => put_int8(numbers, bytes),
    }
}

/// Bytes of a whole block.
pub(crate) fn block_bytes(compress: Compress) -> usize {
    match compress {
        Compress::Bf16 => Form::Bf16.block(),
        Compress::Int8 => Form::Int8.block(),
    }
}

fn put_bf16(numbers: &mut [f32], bytes: &mut [u8]) {
    for (number, half) in numbers.iter_mut().zip(bytes.chunks_exact_mut(2)) {
        let bits = number.to_bits();
        let is_nan = bits & 0x7fff_ffff > NOT_FINITE;
        let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // Cut off, a NaN could be an infinity.
        let high = if is_nan { (bits >> 16) | 0x40 } else { nearest };
        half.copy_from_slice(&(high as u16).to_le_bytes());
        let lost = *number - f32::from_bits(high << 16);
        *number = if lost.is_finite() { lost } else { 0.0 };
    }
}

fn put_int8(numbers: &mut [f32], bytes: &mut [u8]) {
    // As whole numbers, the bits of absolute values are in the order of these, and NaN above all.
    let most = numbers.iter().fold(0, |most: i32, n| most.max((n.to_bits() & 0x7fff_ffff).cast_signed()));
    let most = f32::from_bits(most.cast_unsigned());
    let (scale, inverse) = match most.is_finite() {
        false => (f32::NAN, 0.0),
        true if most < SMALLEST => (0.0, 0.0),
        true => (scale(most), LARGEST / most),
    };
    let Some((head, bytes)) = bytes.split_first_chunk_mut::<SCALE>() else { return };
    *head = scale.to_le_bytes();
    for (number, byte) in numbers.iter_mut().zip(bytes) {
        let shifted = *number * inverse + ROUNDING;
        *byte = shifted.to_bits() as u8;
        *number -= (shifted - ROUNDING) * scale;
    }
    if !most.is_finite() {
        numbers.fill(0.0);
    }
}

/// What the largest number is 127 times; rounded up, that product could be an infinity.
fn scale(most: f32) -> f32 {
    let nearest = most / LARGEST;
    match (nearest * LARGEST).is_finite() {
        true => nearest,
        false => nearest.next_down(),
    }
}

/// A slice in float32, whatever it came in.
///
/// # Errors
/// It is no slice of gradients.
pub fn decompressed(payload: &Payload) -> Result<Payload, String> {
    let coded = match Coded::read(payload)? {
        Some(coded) if coded.form != Form::F32 => coded,
        _ => return Ok(payload.clone()),
    };
    let mut bytes = vec![0; coded.len() * FLOAT];
    for (number, block) in bytes.chunks_mut(BLOCK * FLOAT).enumerate() {
        let mut numbers = [0.0; BLOCK];
        coded.add(number, &mut numbers);
        for (bytes, number) in block.chunks_exact_mut(FLOAT).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
    }
    let meta = TensorMeta { dtype: DType::Float32, shape: vec![coded.len() as u64] };
    Ok(Payload { meta, bytes: bytes.into() })
}

#[cfg(test)]
#[path = "compression_tests.rs"]
mod tests;
