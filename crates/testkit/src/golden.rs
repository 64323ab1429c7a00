//! Golden files: checked-in texts that the code must reproduce.

use std::path::Path;

/// Compares a text with `tests/golden/NAME` of the calling crate.
#[macro_export]
macro_rules! assert_golden {
    ($name:expr, $text:expr) => {
        $crate::golden::assert_golden(
            &::std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join($name),
            $text,
        )
    };
}

/// Compares a text with a checked-in file. With `UPDATE_GOLDEN=1` writes the file instead.
pub fn assert_golden(path: &Path, actual: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, actual).expect("the golden folder is writable");
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    let different =
        expected.lines().zip(actual.lines()).position(|(expected, actual)| expected != actual);
    let line = different.unwrap_or_else(|| expected.lines().count().min(actual.lines().count()));
    assert!(
        expected == actual,
        "{} differs from what the code gives, first in line {}.\nIf the code is right, write the \
         file anew: UPDATE_GOLDEN=1 cargo test\nexpected: {:?}\n  actual: {:?}",
        path.display(),
        line + 1,
        expected.lines().nth(line),
        actual.lines().nth(line),
    );
}
