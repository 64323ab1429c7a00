//! Reads NumPy's `.npz`: a zip archive of `.npy` arrays.

use super::array_column::{ArrayColumn, Layout};
use super::column::Column;
use super::npy;
use super::plain_or_gzip;
use super::spool::{Spool, Store};
use super::table::Table;
use crate::DataError;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use zip::{CompressionMethod, ZipArchive};

/// Opens the arrays of these names. Uncompressed ones (`numpy.savez`) are read in place, after one
/// pass that compares their checksums.
pub(super) fn open(table: &Table) -> Result<BTreeMap<String, Column>, DataError> {
    let path = &table.path;
    let error = |problem: String| DataError::file(path, problem);
    let store = Arc::new(Store::open(path)?);
    let file = BufReader::new(File::open(path).map_err(|e| DataError::io(path, &e))?);
    let mut archive = ZipArchive::new(file).map_err(|e| error(format!("not an .npz file: {e}")))?;
    let held: Vec<String> =
        archive.file_names().map(|name| name.trim_end_matches(".npy").to_string()).collect();
    let mut columns = BTreeMap::new();
    for name in table.columns() {
        let place = archive
            .index_for_name(&format!("{name}.npy"))
            .ok_or_else(|| table.missing("array", name, &held))?;
        columns.insert(
            name.to_string(),
            Column::Array(array(path, name, &mut archive, place, &store)?),
        );
    }
    Ok(columns)
}

fn array(
    path: &Path,
    name: &str,
    archive: &mut ZipArchive<BufReader<File>>,
    place: usize,
    store: &Arc<Store>,
) -> Result<ArrayColumn, DataError> {
    // Errors name the file and the array in it.
    let path = &path.join(format!("{name}.npy"));
    let mut entry = archive.by_index(place).map_err(|e| DataError::file(path, e))?;
    let (stored, offset) = (entry.compression() == CompressionMethod::Stored, entry.data_start());
    let (layout, samples) = npy::header(path, &mut entry)?;
    let bytes = layout
        .shape
        .iter()
        .try_fold(layout.element.size(), |product, size| product.checked_mul(*size));
    let bytes = bytes.and_then(|bytes| bytes.checked_mul(samples));
    let too_large = || {
        DataError::file(path, format!("{samples} samples of it need more bytes than any file has"))
    };
    let bytes = bytes.ok_or_else(too_large)?;
    if let (true, Some(offset)) = (stored, offset) {
        let start = layout.start.saturating_add(offset);
        let column = ArrayColumn::new(path, store.clone(), Layout { start, ..layout }, samples)?;
        plain_or_gzip::copy_whole(path, &mut entry, bytes, |_| Ok(()))?;
        return Ok(column);
    }
    let mut spool = Spool::new();
    plain_or_gzip::copy_whole(path, &mut entry, bytes, |part| spool.write(part))?;
    ArrayColumn::new(path, Arc::new(spool.finish()?), Layout { start: 0, ..layout }, samples)
}
