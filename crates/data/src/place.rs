//! The place of a sample in its files, as errors name it.

use super::endings::{ends, is_csv};
use super::{csv, jsonl, DataError, Dataset, Source};
use std::path::Path;

impl Dataset {
    /// The file of a sample, if each sample has a file of its own, as a picture has.
    pub fn file_of(&self, number: i64) -> Option<&Path> {
        self.inputs.first()?.1.picture(self.number(number)?)
    }

    /// Makes an error about the target of a sample. It names the file, and the line or the sample's
    /// number in the file, counted from 1.
    ///
    /// `number` is the sample's number in this data set, as [`Dataset::batch`] takes it. A file of
    /// lines is read again up to the sample.
    pub fn target_error(&self, number: i64, problem: &str) -> DataError {
        let source = &self.opened.source;
        let number = self.number(number).unwrap_or(number);
        if let Some(picture) = self.inputs.first().and_then(|(_, input)| input.picture(number)) {
            return DataError::file(picture, problem);
        }
        let path = self.target.as_ref().and_then(|target| target.path());
        let path = path.unwrap_or_else(|| source.path());
        let place = match line(source, path, number) {
            Some(line) => format!("line {line}"),
            None => format!("sample {}", number.saturating_add(1)),
        };
        DataError::file(path, format!("{place}: {problem}"))
    }
}

/// The line of a sample, if the file has lines and can be read again.
fn line(source: &Source, path: &Path, number: i64) -> Option<u64> {
    match source {
        Source::Columns(table) => table.line_of(number),
        Source::Jsonl(_) => jsonl::line_of(path, number),
        Source::File(_) if ends(path, &[".jsonl", ".jsonl.gz"]) => jsonl::line_of(path, number),
        Source::File(_) if is_csv(path) => csv::line_of(path, number),
        _ => None,
    }
}
