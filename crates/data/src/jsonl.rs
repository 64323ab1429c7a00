//! Reads JSON lines, plain or gzipped: one object per line, with a key for each model input and the
//! target.

use super::array_column::ColumnWriter;
use super::column::Column;
use super::element::Element;
use super::nested::Nested;
use super::plain_or_gzip;
use super::shown::{reason, shown};
use super::table::Table;
use crate::DataError;
use layerspec::DType;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// Opens the columns of these names. Each is stored in the requested dtype.
pub(super) fn open(
    table: &Table,
    wanted: &BTreeMap<String, DType>,
) -> Result<BTreeMap<String, Column>, DataError> {
    let path = &table.path;
    let mut columns: Vec<(&str, ColumnWriter)> = wanted
        .iter()
        .map(|(name, dtype)| (name.as_str(), ColumnWriter::new(Element::for_dtype(*dtype))))
        .collect();
    let (mut file, _) = plain_or_gzip::open(path)?;
    let (mut number, mut text) = (0, String::new());
    let mut nested = Nested::default();
    while plain_or_gzip::line(path, &mut file, &mut number, &mut text)? {
        if text.trim().is_empty() {
            continue;
        }
        let error = |problem: String| DataError::file(path, format!("line {number}: {problem}"));
        let object: Map<String, Value> = serde_json::from_str(&text)
            .map_err(|e| error(format!("is no JSON object: {}", reason(e))))?;
        for (name, column) in &mut columns {
            let value = object.get(*name).ok_or_else(|| {
                let held: Vec<String> = object.keys().cloned().collect();
                error(format!("no key `{name}`; it has {}", held.join(", ")))
            })?;
            nested.clear();
            flatten(value, 0, &mut nested)
                .map_err(|problem| error(format!("`{name}`: {problem}")))?;
            column
                .push(&nested.numbers, &nested.shape)
                .map_err(|e| error(format!("`{name}`: {e}")))?;
        }
    }
    let finish = |(name, column): (&str, ColumnWriter)| {
        Ok((name.to_string(), Column::Array(column.finish(path)?)))
    };
    columns.into_iter().map(finish).collect()
}

/// Returns the line of a sample, counted from 1. Returns `None` if the file cannot be read.
pub(super) fn line_of(path: &Path, sample: i64) -> Option<u64> {
    let (mut file, _) = plain_or_gzip::open(path).ok()?;
    let (mut number, mut text, mut left) = (0, String::new(), sample);
    while plain_or_gzip::line(path, &mut file, &mut number, &mut text).ok()? {
        if text.trim().is_empty() {
            continue;
        }
        if left == 0 {
            return Some(number);
        }
        left -= 1;
    }
    None
}

/// Collects the numbers of nested lists. serde_json bounds the nesting depth.
fn flatten(value: &Value, depth: usize, into: &mut Nested) -> Result<(), String> {
    match value {
        Value::Array(items) => {
            into.list(depth, items.len())?;
            items.iter().try_for_each(|item| flatten(item, depth + 1, into))
        }
        Value::Bool(truth) => into.number(depth, f64::from(u8::from(*truth))),
        Value::Number(number) => into.number(depth, number.as_f64().unwrap_or(f64::NAN)),
        other => Err(format!("expected numbers, found {}", shown(other))),
    }
}
