//! Standard output and standard error. Whoever reads them may stop at any time, as `head` does;
//! that is no error, and no panic.

use crate::BossManError;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Writes text that was asked for, at once. Whether somebody still reads it.
///
/// # Errors
/// It cannot be written though somebody may wait for it, as where the disk is full.
pub fn print(text: &str) -> Result<bool, BossManError> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(BossManError::io(Path::new("standard output"), &e)),
    }
}

/// As [`print()`], a line.
///
/// # Errors
/// As [`print()`].
pub fn print_line(text: &str) -> Result<bool, BossManError> {
    print(&format!("{text}\n"))
}

/// A line on how work goes on, which goes on whether or not the line can be written.
pub fn print_progress(text: &str) {
    print_line(text).ok();
}

/// The same on standard error.
pub fn warn(text: &str) {
    std::io::stderr().write_all(format!("{text}\n").as_bytes()).ok();
}

/// Makes text of another process or machine safe for this terminal: at most `most` characters, and
/// a space for each control character.
pub(crate) fn printable(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_has_no_control_characters_and_an_end() {
        assert_eq!(printable("a\u{1b}[2J\r\nb\u{9b}ü", 100), "a [2J  b ü");
        assert_eq!(printable("üüü", 2), "üü");
    }
}
