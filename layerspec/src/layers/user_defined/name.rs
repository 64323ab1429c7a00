//! Names that a model file gives to parameters.

use crate::spec::is_name;
use parking_lot::Mutex;
use serde::{de, Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;

/// More different names than this are refused in one process: each stays in memory until it ends.
const MOST_NAMES: usize = 1 << 16;

static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// A parameter's name within its layer, as `weight` or `block.0.bias`.
///
/// Other layers' names are in the program itself, and everything that handles parameters counts on
/// that; so a name from a file or a frame is put beside them, once.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ParamName(&'static str);

impl ParamName {
    /// None if the text is not a valid name, or if there are too many names already.
    pub fn new(text: &str) -> Option<Self> {
        if !is_name(text) {
            return None;
        }
        let mut names = NAMES.lock();
        if let Some(known) = names.get(text) {
            return Some(ParamName(known));
        }
        if names.len() >= MOST_NAMES {
            return None;
        }
        let name: &'static str = Box::leak(text.into());
        names.insert(name);
        Some(ParamName(name))
    }

    /// The name as text.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl Serialize for ParamName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for ParamName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        ParamName::new(&text)
            .ok_or_else(|| de::Error::custom("no name for a parameter, or too many of them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once_and_nonsense_never() {
        let (one, two) =
            (ParamName::new("block.0.weight"), ParamName::new(&["block.0", "weight"].join(".")));
        assert!(one.is_some() && one == two);
        assert_eq!(one.map(|name| name.as_str().as_ptr()), two.map(|name| name.as_str().as_ptr()));
        for nonsense in ["", "a b", ".a", "a..b", &"a".repeat(201)] {
            assert_eq!(ParamName::new(nonsense), None);
        }
    }
}
