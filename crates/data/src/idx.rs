//! Reads the idx format of MNIST and similar data sets, plain or gzipped.
//!
//! A file has a magic number with the dtype, big-endian sizes, and the elements.

use super::array_column::{ArrayColumn, Layout};
use super::element::Element;
use super::plain_or_gzip::{self, read_exactly};
use super::spool::{Spool, Store};
use crate::DataError;
use std::path::Path;
use std::sync::Arc;

/// The most dimensions of a file. No file of samples has more.
const MAX_DIMS: u8 = 8;

/// Opens an array whose first dimension counts samples.
pub(super) fn open(path: &Path) -> Result<ArrayColumn, DataError> {
    let error = |problem: String| DataError::file(path, problem);
    let (mut file, gzipped) = plain_or_gzip::open(path)?;
    let mut magic = [0; 4];
    read_exactly(path, &mut file, &mut magic)?;
    let [0, 0, element, dims] = magic else {
        return Err(error(format!("begins with {magic:02x?}; an idx file begins with 00 00")));
    };
    let element = match element {
        0x08 => Element::U8,
        0x09 => Element::I8,
        0x0B => Element::I16,
        0x0C => Element::I32,
        0x0D => Element::F32,
        0x0E => Element::F64,
        other => {
            return Err(error(format!(
                "unknown idx dtype {other:#04x}; known are 08, 09, 0b, 0c, 0d and 0e"
            )))
        }
    };
    if dims == 0 || dims > MAX_DIMS {
        return Err(error(format!("an idx file of {dims} dimensions; expected 1 to {MAX_DIMS}")));
    }
    let mut sizes = vec![0; usize::from(dims) * 4];
    read_exactly(path, &mut file, &mut sizes)?;
    let mut sizes =
        sizes.chunks_exact(4).map(|b| u64::from(u32::from_be_bytes([b[0], b[1], b[2], b[3]])));
    let samples = sizes.next().unwrap_or(0);
    let shape: Vec<u64> = sizes.collect();
    let layout = Layout { big_endian: true, ..Layout::packed(element, &shape) };
    if !gzipped {
        let start = 4 + 4 * u64::from(dims);
        return ArrayColumn::new(
            path,
            Arc::new(Store::open(path)?),
            Layout { start, ..layout },
            samples,
        );
    }
    let bytes =
        shape.iter().try_fold(element.size() * samples, |product, size| product.checked_mul(*size));
    let too_large = || {
        DataError::file(path, format!("{samples} samples of it need more bytes than any file has"))
    };
    let bytes = bytes.ok_or_else(too_large)?;
    let mut spool = Spool::new();
    plain_or_gzip::copy_whole(path, &mut file, bytes, |part| spool.write(part))?;
    ArrayColumn::new(path, Arc::new(spool.finish()?), layout, samples)
}
