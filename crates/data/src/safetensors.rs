//! Reads safetensors: tensors by name, each read in place.

use super::array_column::{ArrayColumn, Layout};
use super::column::Column;
use super::element::Element;
use super::spool::Store;
use super::table::Table;
use crate::DataError;
use safetensors::tensor::{Dtype, Metadata};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The format's own limit for its header, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// Opens the tensors of these names.
pub(super) fn open(table: &Table) -> Result<BTreeMap<String, Column>, DataError> {
    let path = &table.path;
    let error = |problem: String| DataError::file(path, problem);
    let store = Arc::new(Store::open(path)?);
    let mut length = [0; 8];
    store
        .read(0, &mut length)
        .map_err(|_| error("not a safetensors file: shorter than its first 8 bytes".into()))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER.min(store.length()) {
        return Err(error(format!(
            "not a safetensors file, or cut short: its header would have {length} bytes"
        )));
    }
    let mut header = vec![0; length as usize];
    store.read(8, &mut header).map_err(|e| error(e.to_string()))?;
    let header: Metadata = serde_json::from_slice(&header)
        .map_err(|e| error(format!("not a safetensors file: {e}")))?;
    let mut held: Vec<String> = header.tensors().into_keys().collect();
    held.sort();
    let mut columns = BTreeMap::new();
    for name in table.columns() {
        let info = header.info(name).ok_or_else(|| table.missing("tensor", name, &held))?;
        let element = element(info.dtype).ok_or_else(|| {
            error(format!("tensor `{name}` has dtype {:?}, which BossMan cannot use", info.dtype))
        })?;
        let (samples, shape) =
            info.shape.split_first().ok_or_else(|| error(format!("`{name}` has no samples")))?;
        let shape: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
        let start = (8 + length).saturating_add(info.data_offsets.0 as u64);
        let layout = Layout { start, ..Layout::packed(element, &shape) };
        columns.insert(
            name.to_string(),
            Column::Array(ArrayColumn::new(path, store.clone(), layout, *samples as u64)?),
        );
    }
    Ok(columns)
}

fn element(dtype: Dtype) -> Option<Element> {
    Some(match dtype {
        Dtype::BOOL => Element::Bool,
        Dtype::U8 => Element::U8,
        Dtype::I8 => Element::I8,
        Dtype::I16 => Element::I16,
        Dtype::U16 => Element::U16,
        Dtype::I32 => Element::I32,
        Dtype::U32 => Element::U32,
        Dtype::I64 => Element::I64,
        Dtype::U64 => Element::U64,
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::BF16,
        Dtype::F32 => Element::F32,
        Dtype::F64 => Element::F64,
        _ => return None,
    })
}
