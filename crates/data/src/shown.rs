//! Values and reasons of files, as an error shows them: cut, for they may be megabytes.

use std::fmt::{Display, Write};

/// The most letters of a value.
const VALUE: usize = 60;
/// The most letters of a reason that a library gives. It may repeat a part of the file.
const REASON: usize = 200;

/// A value of a file.
pub(super) fn shown(value: impl Display) -> String {
    cut(value, VALUE)
}

/// Why a library refuses a file.
pub(super) fn reason(why: impl Display) -> String {
    cut(why, REASON)
}

fn cut(value: impl Display, most: usize) -> String {
    let mut text = Cut { text: String::new(), left: most };
    // It stops with an error when there is no room for more.
    let is_whole = write!(text, "{value}").is_ok();
    text.text + if is_whole { "" } else { "…" }
}

/// A text that takes a number of letters. Control characters become spaces, so that an error is one
/// line.
struct Cut {
    text: String,
    left: usize,
}

impl Write for Cut {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        for letter in part.chars() {
            self.left = self.left.checked_sub(1).ok_or(std::fmt::Error)?;
            self.text.push(if letter.is_control() { ' ' } else { letter });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut() {
        let sixty = "ü".repeat(60);
        assert_eq!(shown(&sixty), sixty);
        assert_eq!(shown(format!("{sixty}x")), format!("{sixty}…"));
        assert_eq!(shown("a\nb\u{1b}"), "a b ");
        let list = serde_json::Value::from(vec![1; 1_000_000]);
        assert_eq!(shown(&list), format!("[{}…", &"1,".repeat(60)[..59]));
        assert_eq!(reason("x".repeat(201)), format!("{}…", "x".repeat(200)));
    }
}
