//! The program's lines for the user. Output errors are ignored: work does not depend on a reader.

use std::io::Write;

/// A line on standard output.
pub(crate) fn line(text: &str) {
    let mut output = std::io::stdout().lock();
    output.write_all(format!("{text}\n").as_bytes()).and_then(|()| output.flush()).ok();
}

/// A line on standard error.
pub(crate) fn warn(text: &str) {
    std::io::stderr().write_all(format!("{text}\n").as_bytes()).ok();
}
