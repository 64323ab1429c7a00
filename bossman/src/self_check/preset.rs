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
    /// The same, and the speed of models that people train.
    Large,
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tiny" => Ok(Preset::Tiny),
            "small" => Ok(Preset::Small),
            "large" => Ok(Preset::Large),
            _ => Err(format!("unknown preset `{text}`; expected tiny, small or large")),
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
            Preset::Small | Preset::Large => Sizes {
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

    /// The sizes of the GPT whose speed is measured, if it says something of the device. That of
    /// the large one has the 350 million parameters of GPT-2 medium. One worker takes its batch
    /// whole.
    pub(super) fn timed_sizes(self) -> Option<Sizes> {
        match self {
            Preset::Tiny => None,
            Preset::Small => Some(self.sizes()),
            Preset::Large => Some(Sizes {
                width: 1024,
                heads: 16,
                blocks: 24,
                length: 1024,
                vocabulary: 50304,
                batch: 8,
                microbatches: 4,
                steps: 2,
            }),
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
        assert_eq!("large".parse(), Ok(Preset::Large));
        let error = "huge".parse::<Preset>().unwrap_err();
        assert_eq!(error, "unknown preset `huge`; expected tiny, small or large");
    }
}
