//! In how many bits the gradients of replicas travel.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A form, smaller than float32, in which gradients go from replica to replica.
///
/// What rounding loses is kept by the sender and added to what it sends next (error feedback: Seide et al. 2014,
/// Karimireddy et al. 2019), so that it is late and not lost.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Compress {
    /// bfloat16, rounded to nearest, ties to even: half the bytes.
    Bf16,
    /// Blocks of [`Compress::BLOCK`] numbers, each with a scale of its own, of which every number is a whole multiple from
    /// -127 to 127: about a quarter of the bytes.
    Int8,
}

impl Compress {
    /// Every form by its name in a run file.
    pub const NAMES: [(&'static str, Compress); 2] = [("bf16", Compress::Bf16), ("int8", Compress::Int8)];
    /// Numbers that share a scale.
    pub const BLOCK: usize = 256;
    /// Bytes of a scale, a float32.
    pub const SCALE: usize = 4;

    /// How many bytes so many numbers take.
    pub fn bytes(self, elements: u64) -> u64 {
        match self {
            Compress::Bf16 => elements.saturating_mul(2),
            Compress::Int8 => {
                let scales = elements.div_ceil(Self::BLOCK as u64).saturating_mul(Self::SCALE as u64);
                elements.saturating_add(scales)
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
        found.ok_or_else(|| format!("`{text}` is no form for gradients: expected bf16 or int8"))
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
        assert!("fp8".parse::<Compress>().unwrap_err().contains("bf16 or int8"));
    }

    #[test]
    fn every_block_has_a_scale() {
        assert_eq!([0, 1, 256, 257].map(|n| Compress::Int8.bytes(n)), [0, 5, 260, 265]);
        assert_eq!(Compress::Bf16.bytes(3), 6);
        assert_eq!(Compress::Int8.bytes(u64::MAX), u64::MAX, "no panic");
    }
}
