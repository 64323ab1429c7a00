//! The sections of a self-check, and their names.

use std::str::FromStr;

/// A section of a self-check.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Section {
    /// What the worker program checks of the device alone.
    Device,
    /// A model in one piece and cut.
    Cuts,
    /// Replicas.
    Replicas,
    /// A run that goes on from a checkpoint.
    Resume,
    /// Runs that must fail.
    Errors,
    /// The predicted time of a step.
    Prediction,
    /// Tokens a second.
    Speed,
}

impl Section {
    /// Every section by its name, in the order in which they are checked.
    pub const NAMES: [(&'static str, Section); 7] = [
        ("device", Section::Device),
        ("cuts", Section::Cuts),
        ("replicas", Section::Replicas),
        ("resume", Section::Resume),
        ("errors", Section::Errors),
        ("prediction", Section::Prediction),
        ("speed", Section::Speed),
    ];

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, section)| *section == self).map_or("", |(name, _)| name)
    }
}

impl FromStr for Section {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, section)| *section).ok_or_else(|| {
            let names: Vec<_> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            format!("unknown section `{text}`; expected one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_a_name() {
        for (name, section) in Section::NAMES {
            assert_eq!(name.parse(), Ok(section));
            assert_eq!(section.name(), name);
        }
        let error = "cut".parse::<Section>().unwrap_err();
        assert!(
            error.starts_with("unknown section `cut`; expected one of device, cuts"),
            "{error}"
        );
    }
}
