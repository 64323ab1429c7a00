//! The names of run folders.

use std::fmt;
use std::path::Path;

/// The most characters of a name.
const MAX_LENGTH: usize = 100;
/// The link to the newest run.
pub(super) const LATEST: &str = "latest";

/// A name of a run: letters, digits, `.`, `_` and `-`, and not `latest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunName(String);

impl RunName {
    /// What a name must be.
    pub const EXPECTED: &'static str =
        "a name of letters, digits, `.`, `_` and `-` that begins with a letter or digit, and is \
         not `latest`";

    /// A name, if the text is one.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_name = text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(fits)
            && text.len() <= MAX_LENGTH
            && text != LATEST;
        is_name.then(|| RunName(text.into()))
    }

    /// The name that a run file's path suggests: its stem, or its folder's name if that is `run`.
    pub fn of_run_file(path: &Path) -> Self {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let stem = absolute.file_stem().unwrap_or_default();
        let folder = absolute.parent().and_then(Path::file_name);
        let text = folder.filter(|_| stem == "run").unwrap_or(stem).to_string_lossy();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let text: String = text
            .chars()
            .map(|c| if fits(c) { c } else { '-' })
            .skip_while(|c| !c.is_ascii_alphanumeric())
            .take(MAX_LENGTH)
            .collect();
        RunName::parse(&text).unwrap_or_else(|| RunName("run".into()))
    }

    /// The name with this number: the name itself for 1, `NAME-2` for 2.
    pub(super) fn numbered(&self, number: u64) -> Self {
        match number {
            0 | 1 => self.clone(),
            number => RunName(format!("{}-{number}", self.0)),
        }
    }

    /// The number of a folder of this name, of which there is one for each run.
    pub(super) fn number_of(&self, folder: &str) -> Option<u64> {
        if folder == self.0 {
            return Some(1);
        }
        let number = folder.strip_prefix(&self.0)?.strip_prefix('-')?;
        let is_number = number.starts_with(|c: char| ('1'..='9').contains(&c));
        number.parse().ok().filter(|number| is_number && *number > 1)
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plain_word() {
        for name in ["a", "digits-2", "v1.0_b", "7"] {
            assert_eq!(RunName::parse(name).unwrap().to_string(), name);
        }
        for text in ["", "latest", "..", ".hidden", "-x", "a/b", "a b", "ü", &"a".repeat(101)] {
            assert_eq!(RunName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_run_file_suggests_a_name() {
        for (path, name) in [
            ("/x/digits/run.yaml", "digits"),
            ("/x/digits/small.yaml", "small"),
            ("/x/my digits/run.yaml", "my-digits"),
            ("/run.yaml", "run"),
            ("/x/latest.yaml", "run"),
            ("/x/--v.yaml", "v"),
            ("/x/äö.yaml", "run"),
        ] {
            assert_eq!(RunName::of_run_file(Path::new(path)).to_string(), name, "{path}");
        }
    }

    #[test]
    fn folders_of_a_name_are_numbered() {
        let name = RunName::parse("a-2").unwrap();
        assert_eq!(name.numbered(1).to_string(), "a-2");
        assert_eq!(name.numbered(3).to_string(), "a-2-3");
        let number = |folder| name.number_of(folder);
        assert_eq!(
            (number("a-2"), number("a-2-2"), number("a-2-10")),
            (Some(1), Some(2), Some(10))
        );
        for other in ["a", "a-2-", "a-2-1", "a-2-02", "a-2-x", "a-2-0", "a-22"] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
