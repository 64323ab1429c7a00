//! Tells run files from model files, for errors that name the file that was meant.

use layerspec::yaml::{self, Kind};

/// The kind of a file, by the keys that only this kind has.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A run file: it has data or an optimizer.
    Run,
    /// A model file: it has layers.
    Model,
}

impl FileKind {
    /// The kind of a file with this text. `None` if its keys do not tell.
    pub fn of(text: &str) -> Option<Self> {
        let root = yaml::parse(text).ok()?;
        // Keys that are given twice tell as much.
        let Kind::Map(entries) = &root.kind else { return None };
        let has = |wanted: &str| entries.iter().any(|entry| entry.key.text == wanted);
        match (has("data") || has("optimizer"), has("layers")) {
            (true, false) => Some(FileKind::Run),
            (false, true) => Some(FileKind::Model),
            _ => None,
        }
    }
}
