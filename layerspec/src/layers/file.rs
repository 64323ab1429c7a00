//! Files beside the model file that layers are built from.

use super::{bad, BadArgument, LayerKind};
use crate::yaml::Reader;
use crate::DType;

/// The most bytes that a layer takes from a file. Workers hold them in memory.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// A file's SHA-256 has this many digits.
const DIGITS: usize = 64;

pub(super) const HASH: Reader<Option<String>> = Reader::new("64 hexadecimal digits", |node| {
    let digits = node.as_text()?.to_ascii_lowercase();
    is_hash(&digits).then_some(Some(digits))
});

fn is_hash(digits: &str) -> bool {
    digits.len() == DIGITS
        && digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit))
}

/// Checks the path of a layer's file.
pub(super) fn check_path(path: &str) -> Result<(), BadArgument> {
    match path.is_empty() {
        true => Err(bad("path", "the name of a file")),
        false => Ok(()),
    }
}

/// What a layer takes from a file.
#[derive(Debug)]
pub struct LayerFile<'a> {
    /// The file, relative to the model file.
    pub path: &'a str,
    /// Which bytes of it.
    pub content: FileContent<'a>,
    /// The SHA-256 of these bytes; None if any are accepted.
    pub sha256: &'a mut Option<String>,
}

/// Bytes of a file.
#[derive(Copy, Clone, Debug)]
pub enum FileContent<'a> {
    /// All of them.
    Whole,
    /// Those of a tensor in a safetensors file.
    Tensor {
        /// Its name.
        name: &'a str,
        /// Its element type.
        dtype: DType,
        /// Its sizes.
        shape: &'a [u64],
    },
}

impl LayerKind {
    /// What the layer takes from a file, if it is built from one.
    pub(crate) fn file_mut(&mut self) -> Option<LayerFile<'_>> {
        match self {
            LayerKind::TorchScript(layer) => Some(LayerFile {
                path: &layer.path,
                content: FileContent::Whole,
                sha256: &mut layer.sha256,
            }),
            LayerKind::Constant(layer) => Some(LayerFile {
                path: &layer.path,
                content: FileContent::Tensor {
                    name: &layer.tensor,
                    dtype: layer.dtype,
                    shape: &layer.shape,
                },
                sha256: &mut layer.sha256,
            }),
            _ => None,
        }
    }
}
