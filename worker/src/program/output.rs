//! The program's lines for the user. Work does not depend on a reader, so it ignores output errors.

use std::io::{Result, Write};

/// A line on standard output.
pub(crate) fn line(text: &str) {
    result(text).ok();
}

/// A line of a result on standard output.
///
/// # Errors
/// It cannot be written, for example because the disk is full or its reader has gone.
pub(crate) fn result(text: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(format!("{}\n", safe(text)).as_bytes())?;
    output.flush()
}

/// A line on standard error.
pub(crate) fn warn(text: &str) {
    std::io::stderr().write_all(format!("{}\n", safe(text)).as_bytes()).ok();
}

/// A line without control characters, because parts of it may be the boss's.
fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !"\n\t".contains(c) { ' ' } else { c }).collect()
}
