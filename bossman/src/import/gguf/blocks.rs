//! The types of tensors in GGUF files, and how a block of each becomes numbers. The layouts are
//! those of ggml's `ggml-quants.c`.

use half::{bf16, f16};

/// A type of tensors.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "ggml's names")]
pub(super) enum BlockKind {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q4_K,
    Q6_K,
}

use BlockKind::{BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q6_K, Q8_0};

/// Each type with its code in files, the numbers of a block, and its bytes.
const KINDS: [(BlockKind, u32, usize, usize); 8] = [
    (F32, 0, 1, 4),
    (F16, 1, 1, 2),
    (BF16, 30, 1, 2),
    (Q8_0, 8, 32, 34),
    (Q4_0, 2, 32, 18),
    (Q4_1, 3, 32, 20),
    (Q4_K, 12, 256, 144),
    (Q6_K, 14, 256, 210),
];

impl BlockKind {
    /// The type with this code.
    pub(super) fn of(code: u32) -> Option<Self> {
        KINDS.into_iter().find(|(_, known, ..)| *known == code).map(|(kind, ..)| kind)
    }

    /// The names of all types.
    pub(super) fn names() -> String {
        KINDS.map(|(kind, ..)| format!("{kind:?}")).join(", ")
    }

    /// The numbers of a block, and its bytes.
    fn block(self) -> (usize, usize) {
        let found = KINDS.into_iter().find(|(kind, ..)| *kind == self);
        found.map_or((1, 1), |(_, _, numbers, bytes)| (numbers, bytes))
    }

    /// The bytes of a tensor. `None` if it is empty, a row is no whole number of blocks, or they
    /// are too many.
    pub(super) fn bytes(self, shape: &[usize]) -> Option<usize> {
        let (numbers, bytes) = self.block();
        let (row, rows) = shape.split_last().map_or((1, shape), |(row, rows)| (*row, rows));
        if !row.is_multiple_of(numbers) || shape.contains(&0) {
            return None;
        }
        let blocks = rows.iter().try_fold(row / numbers, |all, size| all.checked_mul(*size))?;
        blocks.checked_mul(bytes).filter(|bytes| *bytes <= isize::MAX as usize / 8)
    }

    /// The numbers of whole blocks.
    pub(super) fn numbers(self, bytes: &[u8]) -> Vec<f32> {
        let (numbers, size) = self.block();
        let mut found = Vec::with_capacity(bytes.len() / size * numbers);
        for block in bytes.chunks_exact(size) {
            match self {
                F32 => found.extend(block.first_chunk().map(|bytes| f32::from_le_bytes(*bytes))),
                F16 => found.push(half(block)),
                BF16 => found
                    .extend(block.first_chunk().map(|bytes| bf16::from_le_bytes(*bytes).to_f32())),
                Q8_0 => q8_0(block, &mut found),
                Q4_0 => q4_0(block, &mut found),
                Q4_1 => q4_1(block, &mut found),
                Q4_K => q4_k(block, &mut found),
                Q6_K => q6_k(block, &mut found),
            }
        }
        found
    }
}

/// The half-precision number at the beginning.
fn half(bytes: &[u8]) -> f32 {
    bytes.first_chunk().map_or(0.0, |bytes| f16::from_le_bytes(*bytes).to_f32())
}

fn q8_0(block: &[u8], into: &mut Vec<f32>) {
    let (scale, quants) = block.split_at(2);
    let scale = half(scale);
    into.extend(quants.iter().map(|quant| f32::from(quant.cast_signed()) * scale));
}

/// The lower halves of all bytes, and then the upper halves.
fn halves(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

fn q4_0(block: &[u8], into: &mut Vec<f32>) {
    let (scale, quants) = block.split_at(2);
    let scale = half(scale);
    into.extend(halves(quants).map(|quant| (f32::from(quant) - 8.0) * scale));
}

fn q4_1(block: &[u8], into: &mut Vec<f32>) {
    let (scale, rest) = block.split_at(2);
    let (least, quants) = rest.split_at(2);
    let (scale, least) = (half(scale), half(least));
    into.extend(halves(quants).map(|quant| f32::from(quant) * scale + least));
}

/// The scale and the least number of part `part` of eight, in six bits each.
fn scale_and_least(packed: &[u8], part: usize) -> (f32, f32) {
    let byte = |place: usize| packed.get(place).copied().unwrap_or(0);
    let (scale, least) = match part < 4 {
        true => (byte(part) & 63, byte(part + 4) & 63),
        false => (
            (byte(part + 4) & 15) | ((byte(part - 4) >> 6) << 4),
            (byte(part + 4) >> 4) | ((byte(part) >> 6) << 4),
        ),
    };
    (scale.into(), least.into())
}

fn q4_k(block: &[u8], into: &mut Vec<f32>) {
    let (scales, rest) = block.split_at(4);
    let (packed, quants) = rest.split_at(12);
    let (scale, least) = (half(scales), half(scales.split_at(2).1));
    for (pair, quants) in quants.chunks_exact(32).enumerate() {
        let [low, high] = [0, 1].map(|part| {
            let (of_scale, of_least) = scale_and_least(packed, 2 * pair + part);
            (scale * of_scale, least * of_least)
        });
        into.extend(quants.iter().map(|quant| low.0 * f32::from(quant & 15) - low.1));
        into.extend(quants.iter().map(|quant| high.0 * f32::from(quant >> 4) - high.1));
    }
}

fn q6_k(block: &[u8], into: &mut Vec<f32>) {
    let (low_bits, rest) = block.split_at(128);
    let (high_bits, rest) = rest.split_at(64);
    let (scales, scale) = rest.split_at(16);
    let scale = half(scale);
    let halves = low_bits.chunks_exact(64).zip(high_bits.chunks_exact(32));
    for ((low, high), scales) in halves.zip(scales.chunks_exact(8)) {
        // Four groups of 32 numbers: the lower halves of the first and the second 32 bytes, and
        // then their upper halves. Two more bits of each number come from `high`.
        for group in 0..4 {
            let (_, bytes) = low.split_at(32 * (group % 2));
            for (place, (byte, more)) in bytes.iter().zip(high).enumerate() {
                let four = if group < 2 { byte & 15 } else { byte >> 4 };
                let six = four | (((more >> (2 * group)) & 3) << 4);
                let of_scale = scales.get(2 * group + place / 16).map_or(0, |s| s.cast_signed());
                into.push(scale * f32::from(of_scale) * (f32::from(six) - 32.0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(number: f32) -> [u8; 2] {
        f16::from_f32(number).to_le_bytes()
    }

    #[test]
    fn the_bytes_of_a_tensor_are_whole_blocks() {
        assert_eq!(F32.bytes(&[3, 5]), Some(60));
        assert_eq!(Q4_1.bytes(&[2, 64]), Some(80));
        assert_eq!(Q6_K.bytes(&[512]), Some(420));
        assert_eq!(Q4_0.bytes(&[2, 48]), None);
        assert_eq!(F16.bytes(&[usize::MAX, 4]), None);
        assert_eq!(F16.bytes(&[1 << 40, 1 << 40, 0]), None);
        assert_eq!(BlockKind::of(14), Some(Q6_K));
        assert_eq!(BlockKind::of(5), None);
    }

    #[test]
    fn plain_numbers() {
        assert_eq!(F32.numbers(&1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(F16.numbers(&two(-0.25)), [-0.25]);
        assert_eq!(BF16.numbers(&bf16::from_f32(3.0).to_le_bytes()), [3.0]);
    }

    #[test]
    fn blocks_of_32() {
        let quants: Vec<u8> = (0..32).map(|quant: i8| (quant - 16).cast_unsigned()).collect();
        let found = Q8_0.numbers(&[&two(0.5)[..], &quants].concat());
        assert_eq!((found.len(), found[0], found[31]), (32, -8.0, 7.5));
        // The first byte has the first and the seventeenth number.
        let quants = [[0x2fu8; 1].as_slice(), &[0x88; 15]].concat();
        let found = Q4_0.numbers(&[&two(2.0)[..], &quants].concat());
        assert_eq!((found[0], found[1], found[16], found[17]), (14.0, 0.0, -12.0, 0.0));
        let found = Q4_1.numbers(&[&two(2.0)[..], &two(-1.0), &quants].concat());
        assert_eq!((found[0], found[1], found[16]), (29.0, 15.0, 3.0));
    }

    /// Each of the eight parts has scale 1 and the least number 2, times 0.5 and 0.25.
    #[test]
    fn blocks_of_256_with_eight_parts() {
        let packed = [[1u8; 4], [2; 4], [0x21; 4]].concat();
        let mut quants = vec![0x53u8; 128];
        quants[127] = 0xf0;
        let found = Q4_K.numbers(&[&two(0.5)[..], &two(0.25), &packed, &quants].concat());
        assert_eq!(found.len(), 256);
        assert!(found[..32].iter().all(|number| *number == 1.0));
        assert!(found[32..64].iter().all(|number| *number == 2.0));
        assert_eq!((found[223], found[255]), (-0.5, 7.0));
    }

    #[test]
    fn blocks_of_256_with_six_bits() {
        let (mut low, mut high) = (vec![0u8; 128], vec![0u8; 64]);
        // Number 0 is 5 + 2 * 16, number 96 is 15 + 3 * 16, and number 128 is 1.
        (low[0], low[32], low[64], high[0]) = (0x05, 0xf0, 0x01, 0b1100_0010);
        let mut scales = vec![1u8; 16];
        scales[8] = (-2i8).cast_unsigned();
        let found = Q6_K.numbers(&[&low[..], &high, &scales, &two(0.5)].concat());
        assert_eq!(found.len(), 256);
        assert_eq!((found[0], found[96], found[128]), (2.5, 15.5, 31.0));
        assert_eq!((found[1], found[200]), (-16.0, -16.0));
    }
}
