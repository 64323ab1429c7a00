//! Gradients in fewer bits, for the transfer between replicas.
//!
//! - bf16: each number rounded to nearest, ties to even.
//! - int8: blocks of 256 numbers, `| scale: f32 LE | a signed byte for each |`. The last block may
//!   be shorter. The scale is the largest absolute value / 127 (blockwise absmax quantization,
//!   Dettmers et al. 2022, with evenly spaced levels).
//! - int4: blocks of 32 numbers, `| scale: bfloat16 LE | half a byte for each |`. The scale is the
//!   largest absolute value / 7, rounded towards zero. Each level has 8 added. The lower halves of
//!   a block's bytes are its first numbers, and the upper halves the others. A second dimension
//!   tells int4 from int8: `[1, bytes]`, or `[bytes, 1]` if the last upper half is unused.
//!
//! A number that is not finite stays so. In bf16 that concerns the number alone. In int8 and int4
//! its whole block becomes NaN. The rounding error of a number is its value minus the value that
//! the other end decodes, or 0 if that is not finite.

use layerspec::DType;
use link::Payload;
use pipeline::replicas::Compress;
use pipeline::TensorMeta;

pub(crate) const BLOCK: usize = Compress::BLOCK;
const SCALE: usize = Compress::SCALE;
const SMALL_BLOCK: usize = Compress::SMALL_BLOCK;
const SMALL_SCALE: usize = Compress::SMALL_SCALE;
/// Bytes of a whole block in int4.
const SMALL_BYTES: usize = SMALL_BLOCK / 2 + SMALL_SCALE;
const FLOAT: usize = size_of::<f32>();
/// Blocks without a larger number are sent as zeros, because `127 / it` must be finite. Their
/// numbers become rounding errors, and are sent later.
const SMALLEST: f32 = 1e-30;
/// 1.5 x 2^23. Adding it rounds a number below 2^22 to an integer, ties to even, and leaves the
/// integer in the low bits.
const ROUNDING: f32 = 12_582_912.0;
const LARGEST_INT8: f32 = 127.0;
const LARGEST_INT4: f32 = 7.0;
const ZERO_INT4: f32 = 8.0;
const NOT_FINITE: u32 = 0x7f80_0000;

/// The encoding of a slice.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Encoding {
    F32,
    Bf16,
    Int8,
    Int4,
}

impl Encoding {
    /// Bytes of [`BLOCK`] numbers.
    fn block(self) -> usize {
        match self {
            Encoding::F32 => BLOCK * FLOAT,
            Encoding::Bf16 => BLOCK * 2,
            Encoding::Int8 => BLOCK + SCALE,
            Encoding::Int4 => BLOCK / SMALL_BLOCK * SMALL_BYTES,
        }
    }
}

/// A slice of gradients in any encoding.
pub(crate) struct EncodedSlice<'a> {
    form: Encoding,
    bytes: &'a [u8],
    len: usize,
}

impl<'a> EncodedSlice<'a> {
    /// Checks a received slice. Returns `None` if its shape is `[0]`: there is no gradient.
    pub(crate) fn read(payload: &'a Payload) -> Result<Option<Self>, String> {
        let Payload { meta, bytes } = payload;
        let wrong = || format!("a slice of {meta} in {} bytes", bytes.len());
        let (form, unused) = match (meta.dtype, &meta.shape[..]) {
            (DType::Float32, [_]) => (Encoding::F32, 0),
            (DType::BFloat16, [_]) => (Encoding::Bf16, 0),
            (DType::UInt8, [_]) => (Encoding::Int8, 0),
            (DType::UInt8, [1, _]) => (Encoding::Int4, 0),
            (DType::UInt8, [_, 1]) => (Encoding::Int4, 1),
            _ => return Err(wrong()),
        };
        if meta.byte_len().and_then(|len| usize::try_from(len).ok()) != Some(bytes.len()) {
            return Err(wrong());
        }
        let len = match form {
            Encoding::F32 => bytes.len() / FLOAT,
            Encoding::Bf16 => bytes.len() / 2,
            Encoding::Int8 => match (bytes.len() / form.block(), bytes.len() % form.block()) {
                (blocks, 0) => blocks * BLOCK,
                // A scale without numbers, or a part of a scale.
                (_, 1..=SCALE) => return Err(wrong()),
                (blocks, rest) => blocks * BLOCK + rest - SCALE,
            },
            Encoding::Int4 => match (bytes.len() / SMALL_BYTES, bytes.len() % SMALL_BYTES) {
                (blocks, 0) => (blocks * SMALL_BLOCK).saturating_sub(unused),
                (_, 1..=SMALL_SCALE) => return Err(wrong()),
                (blocks, rest) => blocks * SMALL_BLOCK + (rest - SMALL_SCALE) * 2 - unused,
            },
        };
        Ok((len > 0).then_some(EncodedSlice { form, bytes, len }))
    }

    /// The count of numbers.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds the numbers of one block to `sum`.
    pub(crate) fn add(&self, block: usize, sum: &mut [f32]) {
        let bytes = self.bytes.chunks(self.form.block()).nth(block).unwrap_or_default();
        match self.form {
            Encoding::F32 => {
                for (sum, float) in sum.iter_mut().zip(bytes.as_chunks::<FLOAT>().0) {
                    *sum += f32::from_le_bytes(*float);
                }
            }
            Encoding::Bf16 => {
                for (sum, half) in sum.iter_mut().zip(bytes.as_chunks().0) {
                    *sum += f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
                }
            }
            Encoding::Int8 => {
                let Some((scale, bytes)) = bytes.split_first_chunk::<SCALE>() else { return };
                let scale = f32::from_le_bytes(*scale);
                for (sum, byte) in sum.iter_mut().zip(bytes) {
                    *sum += f32::from(byte.cast_signed()) * scale;
                }
            }
            Encoding::Int4 => {
                for (sum, bytes) in sum.chunks_mut(SMALL_BLOCK).zip(bytes.chunks(SMALL_BYTES)) {
                    let Some((scale, bytes)) = bytes.split_first_chunk::<SMALL_SCALE>() else {
                        return;
                    };
                    let scale = f32::from_bits(u32::from(u16::from_le_bytes(*scale)) << 16);
                    // The compiler knows the length of whole blocks, and makes vector instructions.
                    match (
                        <&mut [f32; SMALL_BLOCK]>::try_from(&mut *sum),
                        <&[u8; SMALL_BLOCK / 2]>::try_from(bytes),
                    ) {
                        (Ok(sum), Ok(bytes)) => add_int4(sum, bytes, scale),
                        _ => add_int4(sum, bytes, scale),
                    }
                }
            }
        }
    }
}

/// The dtype and shape of `len` compressed numbers, and their size in bytes.
pub(crate) fn encoded_meta(compress: Compress, len: usize) -> (TensorMeta, usize) {
    let bytes = compress.bytes(len as u64);
    let (dtype, shape) = match compress {
        Compress::Bf16 => (DType::BFloat16, vec![len as u64]),
        Compress::Int8 => (DType::UInt8, vec![bytes]),
        Compress::Int4 if len.is_multiple_of(2) => (DType::UInt8, vec![1, bytes]),
        Compress::Int4 => (DType::UInt8, vec![bytes, 1]),
    };
    (TensorMeta { dtype, shape }, usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Encodes a block. The rounding errors replace its numbers.
pub(crate) fn encode_block(compress: Compress, numbers: &mut [f32], bytes: &mut [u8]) {
    match compress {
        Compress::Bf16 => encode_bf16(numbers, bytes),
        Compress::Int8 => encode_int8(numbers, bytes),
        Compress::Int4 => encode_int4(numbers, bytes),
    }
}

/// The bytes of a whole block.
pub(crate) fn block_bytes(compress: Compress) -> usize {
    match compress {
        Compress::Bf16 => Encoding::Bf16.block(),
        Compress::Int8 => Encoding::Int8.block(),
        Compress::Int4 => Encoding::Int4.block(),
    }
}

fn encode_bf16(numbers: &mut [f32], bytes: &mut [u8]) {
    for (number, half) in numbers.iter_mut().zip(bytes.as_chunks_mut().0) {
        let bits = number.to_bits();
        let is_nan = bits & 0x7fff_ffff > NOT_FINITE;
        let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // A truncated NaN could become an infinity.
        let high = if is_nan { (bits >> 16) | 0x40 } else { nearest };
        *half = (high as u16).to_le_bytes();
        let lost = *number - f32::from_bits(high << 16);
        *number = if lost.is_finite() { lost } else { 0.0 };
    }
}

fn encode_int8(numbers: &mut [f32], bytes: &mut [u8]) {
    let Some((head, bytes)) = bytes.split_first_chunk_mut::<SCALE>() else { return };
    let levels = Quantizer::of(numbers, LARGEST_INT8);
    *head = levels.scale.to_le_bytes();
    for (number, byte) in numbers.iter_mut().zip(bytes) {
        *byte = levels.round(number) as u8;
    }
    levels.clear_non_finite(numbers);
}

fn encode_int4(numbers: &mut [f32], bytes: &mut [u8]) {
    for (numbers, bytes) in numbers.chunks_mut(SMALL_BLOCK).zip(bytes.chunks_mut(SMALL_BYTES)) {
        let Some((head, bytes)) = bytes.split_first_chunk_mut::<SMALL_SCALE>() else { return };
        let whole = (
            <&mut [f32; SMALL_BLOCK]>::try_from(&mut *numbers),
            <&mut [u8; SMALL_BLOCK / 2]>::try_from(&mut *bytes),
        );
        *head = match whole {
            (Ok(numbers), Ok(bytes)) => encode_small_block(numbers, bytes),
            _ => encode_small_block(numbers, bytes),
        };
    }
}

/// Encodes a block of int4, and returns its scale.
#[inline(always)]
fn encode_small_block(numbers: &mut [f32], bytes: &mut [u8]) -> [u8; SMALL_SCALE] {
    let levels = Quantizer::of(numbers, LARGEST_INT4).with_bf16_scale();
    let half = |number: &mut f32| (levels.round(number) as u8).wrapping_add(ZERO_INT4 as u8) & 0xf;
    let (first, second) = numbers.split_at_mut(numbers.len().div_ceil(2));
    for ((byte, first), second) in bytes.iter_mut().zip(first.iter_mut()).zip(second.iter_mut()) {
        *byte = half(first) | half(second) << 4;
    }
    if let (Some(byte), Some(last)) = (bytes.get_mut(second.len()), first.get_mut(second.len())) {
        *byte = half(last);
    }
    levels.clear_non_finite(numbers);
    ((levels.scale.to_bits() >> 16) as u16).to_le_bytes()
}

/// Adds the numbers of a block of int4.
#[inline(always)]
fn add_int4(sums: &mut [f32], bytes: &[u8], scale: f32) {
    let number = |half: u8| (f32::from(half) - ZERO_INT4) * scale;
    let (first, second) = sums.split_at_mut(sums.len().div_ceil(2));
    for (sum, byte) in first.iter_mut().zip(bytes) {
        *sum += number(byte & 0xf);
    }
    for (sum, byte) in second.iter_mut().zip(bytes) {
        *sum += number(byte >> 4);
    }
}

/// Evenly spaced levels for a block.
struct Quantizer {
    scale: f32,
    inverse: f32,
    is_finite: bool,
}

impl Quantizer {
    /// Chooses the scale so that the largest absolute value of these numbers is `largest` times the
    /// scale.
    fn of(numbers: &[f32], largest: f32) -> Self {
        // The bits of absolute values, as integers, have the same order as the values. NaN is the
        // largest.
        let most = numbers
            .iter()
            .fold(0, |most: i32, n| most.max((n.to_bits() & 0x7fff_ffff).cast_signed()));
        let most = f32::from_bits(most.cast_unsigned());
        let (scale, inverse) = match most.is_finite() {
            false => (f32::NAN, 0.0),
            true if most < SMALLEST => (0.0, 0.0),
            true => (scale(most, largest), largest / most),
        };
        Quantizer { scale, inverse, is_finite: most.is_finite() }
    }

    /// Rounds the scale to a bfloat16, towards zero, so that its multiples stay finite.
    fn with_bf16_scale(self) -> Self {
        let scale = f32::from_bits(self.scale.to_bits() & 0xffff_0000);
        let inverse = if self.inverse == 0.0 { 0.0 } else { 1.0 / scale };
        Quantizer { scale, inverse, ..self }
    }

    /// Returns the level of a number in the low bits. The rounding error replaces the number.
    fn round(&self, number: &mut f32) -> u32 {
        let shifted = *number * self.inverse + ROUNDING;
        *number -= (shifted - ROUNDING) * self.scale;
        shifted.to_bits()
    }

    fn clear_non_finite(&self, numbers: &mut [f32]) {
        if !self.is_finite {
            numbers.fill(0.0);
        }
    }
}

/// The scale for this largest absolute value. It is rounded down if its largest multiple would be
/// infinite.
fn scale(most: f32, largest: f32) -> f32 {
    let nearest = most / largest;
    match (nearest * largest).is_finite() {
        true => nearest,
        false => nearest.next_down(),
    }
}

/// Decodes a slice to float32.
///
/// # Errors
/// The payload is no slice of gradients.
pub fn decompress(payload: &Payload) -> Result<Payload, String> {
    let coded = match EncodedSlice::read(payload)? {
        Some(coded) if coded.form != Encoding::F32 => coded,
        _ => return Ok(payload.clone()),
    };
    let mut bytes = vec![0; coded.len() * FLOAT];
    for (number, block) in bytes.chunks_mut(BLOCK * FLOAT).enumerate() {
        let mut numbers = [0.0; BLOCK];
        // In int4 the places of numbers depend on their count.
        let numbers = &mut numbers[..block.len() / FLOAT];
        coded.add(number, numbers);
        put_floats(block, numbers);
    }
    let meta = TensorMeta { dtype: DType::Float32, shape: vec![coded.len() as u64] };
    Ok(Payload { meta, bytes: bytes.into() })
}

/// Writes numbers as little-endian bytes.
pub(crate) fn put_floats(bytes: &mut [u8], numbers: &[f32]) {
    for (bytes, number) in bytes.as_chunks_mut::<FLOAT>().0.iter_mut().zip(numbers) {
        *bytes = number.to_le_bytes();
    }
}

#[cfg(test)]
#[path = "compression_tests.rs"]
mod tests;
