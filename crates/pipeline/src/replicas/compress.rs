//! The compressed forms in which the gradients of replicas travel.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A form, smaller than float32, in which gradients travel between replicas.
///
/// The sender stores the rounding error and adds it to its next gradients (error feedback: Seide et
/// al. 2014, Karimireddy et al. 2019). So it is late but not lost.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Compress {
    /// bfloat16, rounded to nearest, ties to even: half the bytes.
    Bf16,
    /// Blocks of [`Compress::BLOCK`] numbers. Each block has a scale, and its numbers are multiples
    /// of it, from -127 to 127: about a quarter of the bytes.
    Int8,
    /// Blocks of [`Compress::SMALL_BLOCK`] numbers. Each block has a bfloat16 scale, and its
    /// numbers are multiples of it, from -7 to 7: about a seventh of the bytes.
    Int4,
}

impl Compress {
    /// Every form, with its name in run files.
    pub const NAMES: [(&'static str, Compress); 3] =
        [("bf16", Compress::Bf16), ("int8", Compress::Int8), ("int4", Compress::Int4)];
    /// The numbers that share a scale in int8.
    pub const BLOCK: usize = 256;
    /// Bytes of such a scale, a float32.
    pub const SCALE: usize = 4;
    /// The numbers that share a scale in int4.
    pub const SMALL_BLOCK: usize = 32;
    /// Bytes of such a scale, a bfloat16.
    pub const SMALL_SCALE: usize = 2;

    /// The number of bytes of this number of elements.
    pub fn bytes(self, elements: u64) -> u64 {
        let scales = |block: usize, scale: usize| {
            elements.div_ceil(block as u64).saturating_mul(scale as u64)
        };
        match self {
            Compress::Bf16 => elements.saturating_mul(2),
            Compress::Int8 => elements.saturating_add(scales(Self::BLOCK, Self::SCALE)),
            Compress::Int4 => {
                elements.div_ceil(2).saturating_add(scales(Self::SMALL_BLOCK, Self::SMALL_SCALE))
            }
        }
    }
}

impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, form)| form == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Compress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, form)| *form);
        found.ok_or_else(|| {
            format!("`{text}` is no form for gradients: expected bf16, int8 or int4")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, form) in Compress::NAMES {
            assert_eq!((form.to_string().as_str(), name.parse()), (name, Ok(form)));
        }
        assert!("fp8".parse::<Compress>().unwrap_err().contains("bf16, int8 or int4"));
    }

    #[test]
    fn every_block_has_a_scale() {
        assert_eq!([0, 1, 256, 257].map(|n| Compress::Int8.bytes(n)), [0, 5, 260, 265]);
        assert_eq!([0, 1, 2, 32, 33, 256].map(|n| Compress::Int4.bytes(n)), [0, 3, 3, 18, 21, 144]);
        assert_eq!(Compress::Bf16.bytes(3), 6);
        assert_eq!(Compress::Int8.bytes(u64::MAX), u64::MAX, "no panic");
    }
}
