//! What goes to standard output. Whoever reads it may stop at any time, as `head` does; that is no error, and no panic.

use std::io::Write;

/// Writes text, at once.
pub fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).ok();
}

/// Writes a line.
pub fn line(text: &str) {
    say(&format!("{text}\n"));
}
