//! Reads NumPy's `.npy`: a magic number, a header that is a Python dict of three known keys,
//! elements.
//!
//! The format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use super::array_column::{ArrayColumn, Layout};
use super::element::Element;
use super::plain_or_gzip::read_exactly;
use super::spool::Store;
use crate::DataError;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// NumPy itself refuses longer headers in files that it does not trust.
const MAX_HEADER: usize = 10_000;

/// Opens an array whose first dimension counts samples.
pub(super) fn open(path: &Path) -> Result<ArrayColumn, DataError> {
    let mut file = std::fs::File::open(path).map_err(|e| DataError::io(path, &e))?;
    let (layout, samples) = header(path, &mut file)?;
    ArrayColumn::new(path, Arc::new(Store::open(path)?), layout, samples)
}

/// Reads up to the first element. Returns the layout with its position, and the number of samples.
pub(super) fn header(path: &Path, file: &mut impl Read) -> Result<(Layout, u64), DataError> {
    let error = |problem: String| DataError::file(path, problem);
    let mut start = [0; 8];
    read_exactly(path, file, &mut start)?;
    if !start.starts_with(MAGIC) {
        return Err(error("is no .npy array: it does not begin with \\x93NUMPY".into()));
    }
    let wide = match start[6] {
        1 => false,
        2 | 3 => true,
        other => return Err(error(format!("version {other} of the .npy format is not known"))),
    };
    let mut length = [0; 4];
    read_exactly(path, file, &mut length[..if wide { 4 } else { 2 }])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_HEADER {
        return Err(error(format!("a header of {length} bytes; expected at most {MAX_HEADER}")));
    }
    let mut text = vec![0; length];
    read_exactly(path, file, &mut text)?;
    let text = String::from_utf8_lossy(&text);
    let (mut layout, samples) = parse(&text)
        .map_err(|problem| error(format!("{problem}, in the header {}", text.trim())))?;
    layout.start = (8 + if wide { 4 } else { 2 } + length) as u64;
    Ok((layout, samples))
}

/// Parses a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse(text: &str) -> Result<(Layout, u64), String> {
    let value = |key: &str| {
        let after = text.split_once(&format!("'{key}':")).map(|(_, after)| after.trim_start());
        after.ok_or_else(|| format!("there is no '{key}'"))
    };
    let descr = value("descr")?;
    let descr =
        descr.strip_prefix('\'').and_then(|rest| rest.split_once('\'')).map(|(descr, _)| descr);
    let descr = descr.ok_or("records of several fields are not supported")?;
    let (element, big_endian) =
        element(descr).ok_or_else(|| format!("dtype '{descr}' is not supported"))?;
    let shape = value("shape")?
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'))
        .map(|(shape, _)| shape);
    let shape = shape
        .ok_or("'shape' is no list")?
        .split(',')
        .map(str::trim)
        .filter(|size| !size.is_empty());
    let shape: Result<Vec<u64>, _> =
        shape.map(|size| size.trim_end_matches('L').parse::<u64>()).collect();
    let shape = shape.map_err(|_| "'shape' is no list of sizes")?;
    let (samples, shape) = shape.split_first().ok_or("a single number has no samples")?;
    // In one dimension, both orders are the same.
    if !value("fortran_order")?.starts_with("False") && !shape.is_empty() {
        return Err("Fortran order is not supported; save numpy.ascontiguousarray(array)".into());
    }
    Ok((Layout { big_endian, ..Layout::packed(element, shape) }, *samples))
}

fn element(descr: &str) -> Option<(Element, bool)> {
    let (order, name) = descr.split_at_checked(1)?;
    let element = match name {
        "b1" => Element::Bool,
        "u1" => Element::U8,
        "i1" => Element::I8,
        "i2" => Element::I16,
        "u2" => Element::U16,
        "i4" => Element::I32,
        "u4" => Element::U32,
        "i8" => Element::I64,
        "u8" => Element::U64,
        "f2" => Element::F16,
        "f4" => Element::F32,
        "f8" => Element::F64,
        _ => return None,
    };
    matches!(order, "<" | ">" | "|" | "=").then_some((element, order == ">"))
}
