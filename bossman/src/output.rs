//! Standard output and standard error. Their reader may stop at any time, as `head` does. That is
//! no error, and no panic.

use crate::BossManError;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Writes a result at once. Returns whether it still has a reader.
///
/// # Errors
/// It cannot be written for another reason, for example because the disk is full.
pub fn print(text: &str) -> Result<bool, BossManError> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(e) if has_no_reader(&e) => Ok(false),
        Err(e) => Err(BossManError::io(Path::new("standard output"), &e)),
    }
}

/// Whether the reader has ended: the program behind a pipe, or a terminal that was closed.
fn has_no_reader(error: &std::io::Error) -> bool {
    const EIO: i32 = 5;
    error.kind() == ErrorKind::BrokenPipe || (cfg!(unix) && error.raw_os_error() == Some(EIO))
}

/// Writes a line, as [`print()`] does.
///
/// # Errors
/// As [`print()`].
pub fn print_line(text: &str) -> Result<bool, BossManError> {
    print(&format!("{text}\n"))
}

/// Writes a line about the progress of work. Ignores errors, because the work continues.
pub fn print_progress(text: &str) {
    print_line(&safe(text)).ok();
}

/// Writes a line to standard error. Ignores errors.
pub fn warn(text: &str) {
    std::io::stderr().write_all(format!("{}\n", safe(text)).as_bytes()).ok();
}

/// A line without control characters, because parts of it may be of another machine: a worker's
/// error, or the name of a file. It may have several lines.
pub fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !"\n\t".contains(c) { ' ' } else { c }).collect()
}

/// Makes text of another process or machine safe for this terminal: limits it to `most` characters,
/// and replaces each control character by a space.
pub(crate) fn printable(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_terminal_is_a_reader_that_has_ended_and_a_full_disk_is_not() {
        let of = std::io::Error::from_raw_os_error;
        let (eio, enospc, epipe) = (of(5), of(28), of(32));
        assert_eq!(has_no_reader(&eio), cfg!(unix));
        assert!(has_no_reader(&ErrorKind::BrokenPipe.into()));
        assert!(!has_no_reader(&enospc));
        assert!(!cfg!(unix) || has_no_reader(&epipe));
    }

    #[test]
    fn text_of_others_has_no_control_characters_and_an_end() {
        assert_eq!(printable("a\u{1b}[2J\r\nb\u{9b}ü", 100), "a [2J  b ü");
        assert_eq!(printable("üüü", 2), "üü");
        assert_eq!(safe("a\u{1b}]0;\u{7}\n\tb\r"), "a ]0; \n\tb ");
    }
}
