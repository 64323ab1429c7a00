//! Who reads a run's files.

use layerspec::yaml::{Reader, TEXT};

/// Who reads the files of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileReader {
    /// The boss, which sends what is in them.
    #[default]
    Boss,
    /// Each worker reads its own files. The boss has the same ones.
    Workers,
}

/// Reads the key `on`.
pub(super) const FILE_READER: Reader<FileReader> =
    Reader::new("`boss` or `workers`", |node| match (TEXT.read)(node)?.as_str() {
        "boss" => Some(FileReader::Boss),
        "workers" => Some(FileReader::Workers),
        _ => None,
    });
