//! The endings of file names.

use std::path::Path;

/// Whether a path has one of these endings, in small or capital letters.
pub(crate) fn ends(path: &Path, endings: &[&str]) -> bool {
    let name = path.to_string_lossy().to_lowercase();
    endings.iter().any(|ending| name.ends_with(ending))
}

/// Whether a path is that of a CSV file.
pub(crate) fn is_csv(path: &Path) -> bool {
    ends(path, &[".csv", ".csv.gz"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capital_letters_are_as_small_ones() {
        assert!(is_csv(Path::new("a/IRIS.CSV")) && is_csv(Path::new("a.Csv.Gz")));
        assert!(!is_csv(Path::new("a.csv/b")));
    }
}
