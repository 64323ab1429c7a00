//! Names and problems of files, as a message shows them.

use crate::output::printable;

/// The letters of a name in a file that a message shows.
const SHOWN_LETTERS: usize = 200;

/// A name in a file, as a message shows it.
pub(crate) fn shown(name: &str) -> String {
    printable(name, SHOWN_LETTERS)
}

/// A problem, and why a library refuses a file. It may tell parts of the file.
pub(super) fn unreadable(problem: &str, why: impl ToString) -> String {
    format!("{problem}: {}", printable(&why.to_string(), 2 * SHOWN_LETTERS))
}
