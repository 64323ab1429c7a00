//! A picture for tests.

use std::path::Path;

/// A PNG file of one pixel.
const PIXEL: &[u8] =
    b"\x89PNG\x0d\x0a\x1a\x0a\x00\x00\x00\x0dIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\
    \x02\x00\x00\x00\x90wS\xde\x00\x00\x00\x0cIDATx\x9cc`db\x06\x00\x00\x0e\x00\x07\xd7o\xe4x\x00\
    \x00\x00\x00IEND\xaeB`\x82";

/// Writes a picture below a folder.
pub(crate) fn picture(folder: &Path, name: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, PIXEL).unwrap();
}
