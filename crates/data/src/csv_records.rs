//! Reads the records of CSV, each with the line where it begins.

use crate::DataError;
use csv::StringRecord;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// The longest record in bytes, which is in memory as a whole.
const MAX_RECORD: u64 = 64 << 20;

/// The records of a CSV text.
pub(crate) struct CsvRecords<'a, T> {
    /// The path that errors name.
    path: &'a Path,
    reader: csv::Reader<Lines<T>>,
}

impl<'a, T: BufRead> CsvRecords<'a, T> {
    pub(crate) fn new(path: &'a Path, text: T, separator: u8) -> Self {
        let mut builder = csv::ReaderBuilder::new();
        builder.delimiter(separator).has_headers(false).flexible(true);
        let lines = Lines { text, number: 0, has_ended: true, record: 0 };
        CsvRecords { path, reader: builder.from_reader(lines) }
    }

    /// Reads the next record, without blanks around its fields. Returns the line where it begins,
    /// counted from 1, or `None` at the end of the file.
    pub(crate) fn next(&mut self, record: &mut StringRecord) -> Result<Option<u64>, DataError> {
        let lines = self.reader.get_mut();
        lines.record = 0;
        let first = lines.number + 1;
        let read = self.reader.read_record(record);
        let last = self.reader.get_ref().number;
        let more = read.map_err(|e| {
            let problem = match e.kind() {
                csv::ErrorKind::Utf8 { .. } => format!("line {last}: is not text (UTF-8)"),
                _ => format!("line {first}: {e}"),
            };
            DataError::file(self.path, problem)
        })?;
        let within = record.as_slice().bytes().filter(|byte| *byte == b'\n').count() as u64;
        record.trim();
        Ok(more.then_some(last.saturating_sub(within)))
    }
}

/// A text that is read line by line. The parser reads only when it needs more, so a record ends in
/// the line that was read last.
struct Lines<T> {
    text: T,
    /// The line that was read last, counted from 1.
    number: u64,
    /// Whether all of that line was read.
    has_ended: bool,
    /// The bytes that were read for the current record.
    record: u64,
}

impl<T: BufRead> Read for Lines<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let text = self.text.fill_buf()?;
        let most = &text[..text.len().min(into.len())];
        let line = most.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
        let length = line.len();
        self.record += length as u64;
        if self.record > MAX_RECORD {
            return Err(io::Error::other("a row is longer than 64 MiB; is a quote not closed?"));
        }
        into[..length].copy_from_slice(line);
        self.number += u64::from(self.has_ended && length > 0);
        self.has_ended = line.ends_with(b"\n");
        self.text.consume(length);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_has_the_line_where_it_begins() {
        let lines = |text: &str| {
            let mut records = CsvRecords::new(Path::new("t.csv"), text.as_bytes(), b',');
            let (mut record, mut lines) = (StringRecord::new(), Vec::new());
            while let Some(line) = records.next(&mut record).unwrap() {
                lines.push((line, record.iter().next().unwrap_or_default().to_string()));
            }
            lines
        };
        let of = |lines: &[(u64, &str)]| -> Vec<(u64, String)> {
            lines.iter().map(|(line, first)| (*line, first.to_string())).collect()
        };
        for end in ["\n", "\r\n"] {
            let text = |lines: &[&str]| lines.join(end);
            assert_eq!(lines(&text(&["a,b", "c,d", ""])), of(&[(1, "a"), (2, "c")]));
            assert_eq!(lines(&text(&["a,b", "c,d"])), of(&[(1, "a"), (2, "c")]));
            let blank = text(&["", "a", "", "", "b", "c", ""]);
            assert_eq!(lines(&blank), of(&[(2, "a"), (5, "b"), (6, "c")]));
            let quoted = text(&["\"a", "", "b", "\",c", "d,\"e", "f\"", "g"]);
            let a = text(&["a", "", "b"]);
            assert_eq!(lines(&quoted), of(&[(1, &a), (5, "d"), (7, "g")]));
        }
        // Lines longer than the buffer of the parser.
        let long = "x".repeat(20_000);
        assert_eq!(lines(&format!("{long}\r\n{long}\nb")), of(&[(1, &long), (2, &long), (3, "b")]));
        assert_eq!(lines(""), []);
    }

    #[test]
    fn a_quote_that_is_not_closed_takes_bounded_memory() {
        let rest = vec![b'x'; MAX_RECORD as usize];
        let text = [b"a,b\n\"c,d\n", rest.as_slice()].concat();
        let mut records = CsvRecords::new(Path::new("t.csv"), text.as_slice(), b',');
        let mut record = StringRecord::new();
        assert_eq!(records.next(&mut record).unwrap(), Some(1));
        let error = records.next(&mut record).unwrap_err().to_string();
        let expected = "t.csv: line 2: a row is longer than 64 MiB; is a quote not closed?";
        assert_eq!(error, expected);
    }

    #[test]
    fn bytes_that_are_not_text_are_named_by_their_line() {
        let text = b"a\r\n\r\n\xff\r\n".as_slice();
        let mut records = CsvRecords::new(Path::new("t.csv"), text, b',');
        let mut record = StringRecord::new();
        assert_eq!(records.next(&mut record).unwrap(), Some(1));
        let error = records.next(&mut record).unwrap_err().to_string();
        assert_eq!(error, "t.csv: line 3: is not text (UTF-8)");
    }
}
