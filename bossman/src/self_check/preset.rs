//! The sizes of the runs.

use std::str::FromStr;

/// The size of the runs of a self-check.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// A model that every device trains in seconds. Its times say nothing of the device.
    #[default]
    Tiny,
    /// A model that keeps a GPU busy.
    Small,
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tiny" => Ok(Preset::Tiny),
            "small" => Ok(Preset::Small),
            _ => Err(format!("unknown preset `{text}`; expected tiny or small")),
        }
    }
}

/// The sizes of model, data and runs.
#[derive(Copy, Clone, Debug)]
pub(super) struct Sizes {
    pub(super) width: u32,
    pub(super) heads: u32,
    pub(super) blocks: u32,
    /// The tokens of a sequence.
    pub(super) length: u32,
    /// The size of the vocabulary.
    pub(super) vocabulary: u32,
    pub(super) batch: u32,
    pub(super) microbatches: u32,
    pub(super) steps: u32,
}

impl Preset {
    pub(super) fn sizes(self) -> Sizes {
        match self {
            Preset::Tiny => Sizes {
                width: 32,
                heads: 2,
                blocks: 4,
                length: 16,
                vocabulary: 64,
                batch: 8,
                microbatches: 4,
                steps: 6,
            },
            Preset::Small => Sizes {
                width: 512,
                heads: 8,
                blocks: 8,
                length: 256,
                vocabulary: 4096,
                batch: 16,
                microbatches: 4,
                steps: 10,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_has_a_name() {
        assert_eq!("tiny".parse(), Ok(Preset::Tiny));
        assert_eq!("small".parse(), Ok(Preset::Small));
        let error = "large".parse::<Preset>().unwrap_err();
        assert_eq!(error, "unknown preset `large`; expected tiny or small");
    }
}
