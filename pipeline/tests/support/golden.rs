//! Golden files: a text is compared with the one in `tests/golden`, `UPDATE_GOLDEN=1` writes it anew.

use std::path::Path;

/// Fails where `text` differs from the golden file of that name.
pub(crate) fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).expect("the golden folder is writable");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == text, "{} differs; is:\n{text}\nUPDATE_GOLDEN=1 writes it anew", path.display());
}
