//! The element types of stored arrays, and how stored bytes become tensor bytes.

use layerspec::DType;

/// One element type.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Bool,
    U8,
    I8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

impl Element {
    /// Returns the element type that stores numbers of this dtype.
    pub(super) const fn for_dtype(dtype: DType) -> Self {
        match dtype {
            DType::Float32 | DType::Float16 | DType::BFloat16 => Element::F32,
            DType::Float64 => Element::F64,
            DType::Int64 => Element::I64,
            DType::Int32 => Element::I32,
            DType::UInt8 => Element::U8,
            DType::Bool => Element::Bool,
        }
    }

    /// Returns the size of an element in the file, in bytes.
    pub(super) const fn size(self) -> u64 {
        match self {
            Element::Bool | Element::U8 | Element::I8 => 1,
            Element::I16 | Element::U16 | Element::F16 | Element::BF16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        }
    }

    /// Returns the dtype in a tensor. Integers that libtorch lacks become the next larger type that
    /// it has.
    pub(super) const fn dtype(self) -> DType {
        match self {
            Element::Bool => DType::Bool,
            Element::U8 => DType::UInt8,
            Element::I8 | Element::I16 | Element::U16 | Element::I32 => DType::Int32,
            Element::U32 | Element::I64 | Element::U64 => DType::Int64,
            Element::F16 => DType::Float16,
            Element::BF16 => DType::BFloat16,
            Element::F32 => DType::Float32,
            Element::F64 => DType::Float64,
        }
    }

    /// Returns whether float32 holds each number of this type exactly.
    pub(super) const fn fits_float32(self) -> bool {
        use Element::{F64, I32, I64, U32, U64};
        !matches!(self, I32 | U32 | I64 | U64 | F64)
    }

    /// Converts stored bytes into tensor bytes: little-endian, with integers widened.
    pub(super) fn decode(self, mut bytes: Vec<u8>, big_endian: bool) -> Result<Vec<u8>, String> {
        let size = self.size() as usize;
        if big_endian && size > 1 {
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        Ok(match self {
            Element::I8 => {
                bytes.iter().flat_map(|b| i32::from(b.cast_signed()).to_le_bytes()).collect()
            }
            Element::I16 => {
                pairs(&bytes).flat_map(|b| i32::from(i16::from_le_bytes(b)).to_le_bytes()).collect()
            }
            Element::U16 => {
                pairs(&bytes).flat_map(|b| i32::from(u16::from_le_bytes(b)).to_le_bytes()).collect()
            }
            Element::U32 => bytes.chunks_exact(4).flat_map(|b| [b, &[0; 4]].concat()).collect(),
            // As int64, a number with its highest bit set would be negative.
            Element::U64 if bytes.chunks_exact(8).any(|b| b[7] > 127) => {
                return Err("a number is larger than 2^63 - 1".into());
            }
            Element::Bool if bytes.iter().any(|b| *b > 1) => {
                return Err("a truth value is neither 0 nor 1".into());
            }
            _ => bytes,
        })
    }

    /// Appends a number's bytes, or returns what is wrong with it. Supports only the elements that
    /// [`Element::for_dtype`] returns.
    pub(super) fn encode(self, number: f64, into: &mut Vec<u8>) -> Result<(), String> {
        /// Up to this limit, every whole number has its own f64.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        // The number in the file may be another one, so do not name it.
        const INEXACT: &str = "is a whole number of 2^53 or more, which this format cannot carry \
                               exactly; use .npy or .safetensors";
        let whole = number.fract() == 0.0 && number.abs() < EXACT;
        match self {
            _ if !number.is_finite() => {
                return Err(format!("`{number}` is no number to train with"))
            }
            Element::F32 if !(number as f32).is_finite() => {
                return Err(format!("`{number:e}` is larger than any float32"));
            }
            Element::F32 => into.extend((number as f32).to_le_bytes()),
            Element::F64 => into.extend(number.to_le_bytes()),
            Element::I64 if whole => into.extend((number as i64).to_le_bytes()),
            Element::I32 if whole && f64::from(number as i32) == number => {
                into.extend((number as i32).to_le_bytes());
            }
            Element::U8 if whole && (0.0..256.0).contains(&number) => into.push(number as u8),
            Element::Bool if number == 0.0 || number == 1.0 => into.push(number as u8),
            Element::U8 => return Err(format!("`{number}` is not a whole number from 0 to 255")),
            Element::Bool => return Err(format!("`{number}` is neither true nor false, 1 nor 0")),
            Element::I32 => {
                let (least, most) = (i32::MIN, i32::MAX);
                return Err(format!("`{number}` is not a whole number from {least} to {most}"));
            }
            _ if number.fract() != 0.0 => return Err(format!("`{number}` is not a whole number")),
            _ => return Err(INEXACT.into()),
        }
        Ok(())
    }
}

fn pairs(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> + '_ {
    bytes.chunks_exact(2).map(|b| [b[0], b[1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_that_libtorch_lacks_are_widened() {
        let widened =
            |element: Element, bytes: &[u8], big| element.decode(bytes.to_vec(), big).unwrap();
        assert_eq!(widened(Element::I8, &[0xff, 1], false), [255, 255, 255, 255, 1, 0, 0, 0]);
        assert_eq!(widened(Element::I16, &[0xff, 0xfe], true), [0xfe, 255, 255, 255]);
        assert_eq!(widened(Element::U16, &[0xff, 0xfe], true), [0xfe, 255, 0, 0]);
        assert_eq!(widened(Element::U32, &[1, 2, 3, 0x84], false), [1, 2, 3, 0x84, 0, 0, 0, 0]);
        assert_eq!(widened(Element::F32, &[1, 2, 3, 4], true), [4, 3, 2, 1]);
        assert!(Element::U64.decode(vec![0xff; 8], false).is_err());
        assert!(Element::Bool.decode(vec![2], false).is_err());
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let encoded = |element: Element, number| {
            let mut bytes = Vec::new();
            element.encode(number, &mut bytes).map(|()| bytes)
        };
        assert_eq!(encoded(Element::I64, -2.0).unwrap(), (-2i64).to_le_bytes());
        assert_eq!(encoded(Element::I32, -2_147_483_648.0).unwrap(), i32::MIN.to_le_bytes());
        assert_eq!(encoded(Element::F32, 0.5).unwrap(), 0.5f32.to_le_bytes());
        for (element, number) in [
            (Element::I64, 0.5),
            (Element::I64, 1e17),
            (Element::I32, 0.5),
            (Element::I32, 2_147_483_648.0),
            (Element::U8, 256.0),
            (Element::Bool, 2.0),
            (Element::F32, f64::NAN),
        ] {
            assert!(encoded(element, number).is_err(), "{element:?} {number}");
        }
        assert_eq!(encoded(Element::I64, 0.5).unwrap_err(), "`0.5` is not a whole number");
        assert_eq!(
            encoded(Element::I64, 9_007_199_254_740_992.0).unwrap_err(),
            "is a whole number of 2^53 or more, which this format cannot carry exactly; use .npy \
             or .safetensors"
        );
    }
}
