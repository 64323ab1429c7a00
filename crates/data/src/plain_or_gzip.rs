//! Reads files that may be gzipped, from beginning to end.

use super::gzip_members::GzipMembers;
use super::spool::Spool;
use crate::DataError;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The first bytes of a gzipped file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Opens a file for its content. The flag is true if its first bytes are those of gzip.
pub(super) fn open(path: &Path) -> Result<(Box<dyn BufRead>, bool), DataError> {
    let error = |e: io::Error| DataError::io(path, &e);
    let mut file = BufReader::new(File::open(path).map_err(error)?);
    let gzipped = file.fill_buf().map_err(error)?.starts_with(&GZIP);
    Ok(match gzipped {
        true => (Box::new(BufReader::new(GzipMembers::new(file))), true),
        false => (Box::new(file), false),
    })
}

/// Fills `into`. If the file ends before, the error states that it is cut short.
pub(super) fn read_exactly(
    path: &Path,
    file: &mut impl Read,
    into: &mut [u8],
) -> Result<(), DataError> {
    file.read_exact(into).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => {
            DataError::file(path, "cut short: it ends within its header")
        }
        _ => DataError::io(path, &e),
    })
}

/// Copies at most `most` bytes.
pub(super) fn copy(
    path: &Path,
    file: &mut impl Read,
    spool: &mut Spool,
    most: u64,
) -> Result<(), DataError> {
    let mut part = vec![0; 64 * 1024];
    let mut file = file.take(most);
    loop {
        match file.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(read) => spool.write(&part[..read])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(DataError::io(path, &e)),
        }
    }
}

/// Copies the `bytes` bytes of an array, and reads on to the end of the file. Only there a reader
/// of gzip or zip compares the checksum.
///
/// # Errors
/// The file is damaged, or has fewer or more bytes.
pub(super) fn copy_whole(
    path: &Path,
    file: &mut impl Read,
    bytes: u64,
    mut write: impl FnMut(&[u8]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut part = vec![0; 64 * 1024];
    let mut left = bytes;
    loop {
        let read = match file.read(&mut part) {
            Ok(0) if left == 0 => return Ok(()),
            Ok(0) => {
                let found = bytes - left;
                let problem =
                    format!("cut short: its samples need {bytes} bytes, there are {found}");
                return Err(DataError::file(path, problem));
            }
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(damaged(path, &e)),
        };
        left = left.checked_sub(read as u64).ok_or_else(|| {
            DataError::file(
                path,
                format!("has more than the {bytes} bytes of the samples in its header"),
            )
        })?;
        write(&part[..read])?;
    }
}

/// Makes the error of a reader that decompresses.
fn damaged(path: &Path, e: &io::Error) -> DataError {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    match e.kind() {
        InvalidData | InvalidInput | UnexpectedEof => {
            DataError::file(path, format!("is damaged ({e}); copy or make it again"))
        }
        _ => DataError::io(path, e),
    }
}

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 64 * 1024 * 1024;

/// Reads the next line without its end, and counts it in `number`. The first line may begin with a
/// byte order mark, which is left out. Returns false at the end of the file.
pub(super) fn line(
    path: &Path,
    file: &mut impl BufRead,
    number: &mut u64,
    line: &mut String,
) -> Result<bool, DataError> {
    *number += 1;
    let error = |problem: String| DataError::file(path, format!("line {number}: {problem}"));
    line.clear();
    let more = push_line(file, line).map_err(error)?;
    line.truncate(line.trim_end_matches(['\n', '\r']).len());
    if *number == 1 && line.starts_with('\u{feff}') {
        line.remove(0);
    }
    Ok(more)
}

/// The approximate number of bytes of text that are encoded at once.
const PIECE: usize = 1024 * 1024;

/// Reads the next lines unchanged, about 1 MiB of them. Returns false at the end of the file.
pub(super) fn lines(
    path: &Path,
    file: &mut impl BufRead,
    lines: &mut String,
) -> Result<bool, DataError> {
    lines.clear();
    while lines.len() < PIECE
        && push_line(file, lines).map_err(|problem| DataError::file(path, problem))?
    {}
    Ok(!lines.is_empty())
}

/// Appends a line. Returns false at the end of the file.
fn push_line(file: &mut impl BufRead, into: &mut String) -> Result<bool, String> {
    let mut bytes = Vec::new();
    let read = file.take(MAX_LINE + 1).read_until(b'\n', &mut bytes).map_err(|e| e.to_string())?;
    if read as u64 > MAX_LINE {
        return Err("a line is longer than 64 MiB; break it".into());
    }
    into.push_str(std::str::from_utf8(&bytes).map_err(|_| "is not text (UTF-8)")?);
    Ok(read > 0)
}
