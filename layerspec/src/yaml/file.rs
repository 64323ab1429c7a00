//! Fetching a file's text.

use crate::SpecError;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The largest file that is read.
pub const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The text of a file of at most [`MAX_BYTES`]. The error names the file.
pub fn read_file(path: impl AsRef<Path>) -> Result<String, SpecError> {
    let path = path.as_ref();
    let wrong = |message: String| SpecError::of_file(&path.display().to_string(), message);
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that is too large, whatever its length claims to be.
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(wrong("is larger than 16 MiB; this is hardly the file that was meant".into()));
    }
    String::from_utf8(bytes).map_err(|_| {
        wrong("is not text (UTF-8), so it is not YAML; is this the right file?".into())
    })
}
