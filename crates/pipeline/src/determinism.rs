//! Whether a run gives equal bits every time.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Whether results on GPUs are equal to the bit from run to run. On CPUs they are in both cases.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Determinism {
    /// Equal to the bit: GPUs use deterministic kernels only, and no TF32. A layer without such a
    /// kernel is an error.
    #[default]
    Strict,
    /// Equal but for the last bits: GPUs use their fastest kernels, and TF32.
    Fast,
}

impl Determinism {
    /// The names in a run file.
    pub const NAMES: [(&'static str, Determinism); 2] =
        [("strict", Determinism::Strict), ("fast", Determinism::Fast)];
}

impl fmt::Display for Determinism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Determinism::Strict => "strict",
            Determinism::Fast => "fast",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_are_shown() {
        for (name, determinism) in Determinism::NAMES {
            assert_eq!(determinism.to_string(), name);
        }
        assert_eq!(Determinism::default(), Determinism::Strict);
    }
}
