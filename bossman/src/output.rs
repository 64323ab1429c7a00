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
        Err(e) if has_no_reader(&e, is_device()) => Ok(false),
        Err(e) => Err(BossManError::io(Path::new("standard output"), &e)),
    }
}

/// Whether the reader has ended: the program behind a pipe, or the terminal behind a device. A file
/// on a broken disk gives the error of a closed terminal, too.
fn has_no_reader(error: &std::io::Error, is_device: bool) -> bool {
    const EIO: i32 = 5;
    error.kind() == ErrorKind::BrokenPipe || (is_device && error.raw_os_error() == Some(EIO))
}

/// Whether standard output is a device, as a terminal is, also after it was closed.
#[cfg(unix)]
fn is_device() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let output = std::io::stdout().as_fd().try_clone_to_owned().map(std::fs::File::from);
    output.and_then(|file| file.metadata()).is_ok_and(|of| of.file_type().is_char_device())
}

#[cfg(not(unix))]
fn is_device() -> bool {
    false
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
pub fn printable(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_terminal_is_a_reader_that_has_ended_and_a_full_or_broken_disk_is_not() {
        let of = std::io::Error::from_raw_os_error;
        let (eio, enospc, epipe) = (of(5), of(28), of(32));
        assert!(has_no_reader(&eio, true) && !has_no_reader(&eio, false));
        assert!(has_no_reader(&ErrorKind::BrokenPipe.into(), false));
        assert!(!has_no_reader(&enospc, true));
        assert!(!cfg!(unix) || has_no_reader(&epipe, false));
    }

    #[test]
    fn text_of_others_has_no_control_characters_and_an_end() {
        assert_eq!(printable("a\u{1b}[2J\r\nb\u{9b}ü", 100), "a [2J  b ü");
        assert_eq!(printable("üüü", 2), "üü");
        assert_eq!(safe("a\u{1b}]0;\u{7}\n\tb\r"), "a ]0; \n\tb ");
    }
}
