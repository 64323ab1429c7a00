//! The program's lines for the user. Output errors are ignored: work does not depend on a reader.

use std::io::Write;

/// A line on standard output.
pub(crate) fn line(text: &str) {
    let mut output = std::io::stdout().lock();
    output.write_all(format!("{}\n", safe(text)).as_bytes()).and_then(|()| output.flush()).ok();
}

/// A line on standard error.
pub(crate) fn warn(text: &str) {
    std::io::stderr().write_all(format!("{}\n", safe(text)).as_bytes()).ok();
}

/// A line without control characters, because parts of it may be the boss's.
fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !"\n\t".contains(c) { ' ' } else { c }).collect()
}
