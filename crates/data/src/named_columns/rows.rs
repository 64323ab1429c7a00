//! The rows of a table, as texts by the names of columns.

use crate::column_places::column_places;
use crate::csv_records::CsvRecords;
use crate::endings::ends;
use crate::plain_or_gzip;
use crate::DataError;
use std::io::{BufRead, Read};
use std::path::Path;

/// Texts that mean that there is no value.
const MISSING: [&str; 15] = [
    "", "?", "NA", "N/A", "#N/A", "#NA", "<NA>", "n/a", "NaN", "nan", "-NaN", "-nan", "null",
    "NULL", "None",
];
/// The characters between columns, of which the header tells the one.
const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];
/// The longest header in bytes.
const MAX_HEADER: u64 = 1 << 20;

/// A row: its place in the file, as `line 5`, and its texts in the order of the names.
pub(super) struct Row<'a> {
    pub(super) place: String,
    texts: &'a [&'a str],
}

impl Row<'_> {
    /// The values. One is `None` if it is missing.
    pub(super) fn values(&self) -> Vec<Option<&str>> {
        self.texts.iter().map(|text| present(text)).collect()
    }

    /// The first text as it is in the file.
    pub(super) fn first(&self) -> &str {
        self.texts.first().copied().unwrap_or_default()
    }
}

/// Calls `each` with every row.
///
/// # Errors
/// The file cannot be read, or lacks a column.
pub(super) fn read(
    path: &Path,
    names: &[&str],
    each: &mut dyn FnMut(Row<'_>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    if ends(path, &[".parquet"]) {
        return crate::parquet::rows(path, names, &mut |number, values: &[Option<String>]| {
            let texts: Vec<&str> =
                values.iter().map(|value| value.as_deref().unwrap_or_default()).collect();
            each(Row { place: format!("row {number}"), texts: &texts })
        });
    }
    let (mut text, _) = plain_or_gzip::open(path)?;
    let mut header = Vec::new();
    (&mut text)
        .take(MAX_HEADER)
        .read_until(b'\n', &mut header)
        .map_err(|e| DataError::io(path, &e))?;
    let separator = separator(&header);
    let text = std::io::Cursor::new(header).chain(text);
    let mut records = CsvRecords::new(path, text, separator);
    let mut record = csv::StringRecord::new();
    records.next(&mut record)?;
    let held: Vec<String> =
        record.iter().map(|name| name.trim_start_matches('\u{feff}').into()).collect();
    let places = column_places(path, names, &held)?;
    while let Some(line) = records.next(&mut record)? {
        if record.len() != held.len() {
            let (found, wanted) = (record.len(), held.len());
            let problem = format!("line {line} has {found} columns; the header has {wanted}");
            return Err(DataError::file(path, problem));
        }
        let texts: Vec<&str> =
            places.iter().map(|place| record.get(*place).unwrap_or_default()).collect();
        each(Row { place: format!("line {line}"), texts: &texts })?;
    }
    Ok(())
}

/// The line of a sample, counted from 1, if the file has lines and can be read again.
pub(super) fn line_of(path: &Path, sample: i64) -> Option<u64> {
    if ends(path, &[".parquet"]) {
        return None;
    }
    let (mut left, mut line) = (sample, None);
    // The error of the last row ends the reading.
    let _ = read(path, &[], &mut |row: Row<'_>| {
        if left == 0 {
            line = row.place.strip_prefix("line ").and_then(|line| line.parse().ok());
            return Err(DataError::Usage(String::new()));
        }
        left -= 1;
        Ok(())
    });
    line
}

fn present(value: &str) -> Option<&str> {
    Some(value.trim()).filter(|value| !MISSING.contains(value))
}

/// The separator of which the header has most, outside of quotes.
fn separator(header: &[u8]) -> u8 {
    let outside: Vec<&[u8]> = header.split(|byte| *byte == b'"').step_by(2).collect();
    let count = |separator: u8| {
        outside.iter().flat_map(|part| part.iter()).filter(|byte| **byte == separator).count()
    };
    // The first of equally frequent ones.
    SEPARATORS.into_iter().rev().max_by_key(|separator| count(*separator)).unwrap_or(b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_tells_the_separator() {
        assert_eq!(separator(b"a,b,c\n"), b',');
        assert_eq!(separator(b"a;b,0;c\n"), b';');
        assert_eq!(separator(b"a\tb\n"), b'\t');
        assert_eq!(separator(b"a\n"), b',');
        assert_eq!(separator(b"\"a, b, c\";d\n"), b';');
    }
}
