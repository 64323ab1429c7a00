//! Words of commands that people copy from the output.

/// A word of a command that can be pasted into a shell.
pub(super) fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-~".contains(c);
    match text.chars().all(plain) {
        true => text.to_string(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn words_with_spaces_and_quotes_are_quoted() {
        assert_eq!(shell_word("../my-model"), "../my-model");
        assert_eq!(shell_word("it's here"), r"'it'\''s here'");
    }
}
