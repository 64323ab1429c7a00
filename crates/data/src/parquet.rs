//! Reads Parquet: named columns of numbers or of lists of numbers, one row group at a time.

use super::array_column::ColumnWriter;
use super::column::Column;
use super::column_places::{column_places, EachRow};
use super::element::Element;
use super::nested::Nested;
use super::parquet_decimal;
use super::parquet_footer;
use super::shown::shown;
use super::table::Table;
use crate::DataError;
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::Field;
use ::parquet::schema::types::Type;
use layerspec::DType;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

const BROKEN: &str = "a broken Parquet file: its pages contradict its schema";

/// What may help if a column holds bytes.
const PICTURES: &str = " (pictures of Hugging Face's datasets? save them as files in a folder for \
                        each class)";

/// Opens the columns of these names. Each is stored in the requested dtype.
pub(super) fn open(
    table: &Table,
    wanted: &BTreeMap<String, DType>,
) -> Result<BTreeMap<String, Column>, DataError> {
    // The library panics on some broken files. It prints a message itself, and training does not
    // begin.
    let read = std::panic::catch_unwind(|| read(table, wanted));
    read.unwrap_or_else(|_| Err(DataError::file(&table.path, BROKEN)))
}

fn read(
    table: &Table,
    wanted: &BTreeMap<String, DType>,
) -> Result<BTreeMap<String, Column>, DataError> {
    let path = &table.path;
    let error = |problem: String| DataError::file(path, problem);
    let broken = |e: ParquetError| error(format!("not a Parquet file, or a broken one: {e}"));
    let mut file = File::open(path).map_err(|e| DataError::io(path, &e))?;
    parquet_footer::check(&mut file)
        .map_err(|why| error(format!("a broken Parquet file: {why}")))?;
    let reader = SerializedFileReader::new(file).map_err(broken)?;
    let schema = reader.metadata().file_metadata().schema();
    let held: Vec<String> =
        schema.get_fields().iter().map(|field| field.name().to_string()).collect();
    let mut fields = Vec::new();
    for name in wanted.keys() {
        let field = schema.get_fields().iter().find(|field| field.name() == name);
        fields.push(field.cloned().ok_or_else(|| table.missing("column", name, &held))?);
    }
    let projection =
        Type::group_type_builder(schema.name()).with_fields(fields).build().map_err(broken)?;
    let mut columns: BTreeMap<&str, ColumnWriter> = wanted
        .iter()
        .map(|(name, dtype)| (name.as_str(), ColumnWriter::new(Element::for_dtype(*dtype))))
        .collect();
    let mut nested = Nested::default();
    for (row, number) in reader.get_row_iter(Some(projection)).map_err(broken)?.zip(1..) {
        for (name, field) in row.map_err(broken)?.get_column_iter() {
            let error =
                |problem: String| error(format!("row {number}, column `{name}`: {problem}"));
            nested.clear();
            flatten(field, 0, &mut nested).map_err(error)?;
            if let Some(column) = columns.get_mut(name.as_str()) {
                column.push(&nested.numbers, &nested.shape).map_err(|e| error(e.to_string()))?;
            }
        }
    }
    let finish = |(name, column): (&str, ColumnWriter)| {
        Ok((name.to_string(), Column::Array(column.finish(path)?)))
    };
    columns.into_iter().map(finish).collect()
}

/// Calls `each` with the number of every row, and its values of these columns as texts. A value is
/// `None` if it is null.
pub(super) fn rows(path: &Path, names: &[&str], each: &mut EachRow<'_>) -> Result<(), DataError> {
    let each = std::panic::AssertUnwindSafe(each);
    // As in `open`.
    let read = std::panic::catch_unwind(move || rows_of(path, names, each));
    read.unwrap_or_else(|_| Err(DataError::file(path, BROKEN)))
}

fn rows_of(
    path: &Path,
    names: &[&str],
    each: std::panic::AssertUnwindSafe<&mut EachRow<'_>>,
) -> Result<(), DataError> {
    let std::panic::AssertUnwindSafe(each) = each;
    let error = |problem: String| DataError::file(path, problem);
    let broken = |e: ParquetError| error(format!("not a Parquet file, or a broken one: {e}"));
    let mut file = File::open(path).map_err(|e| DataError::io(path, &e))?;
    parquet_footer::check(&mut file)
        .map_err(|why| error(format!("a broken Parquet file: {why}")))?;
    let reader = SerializedFileReader::new(file).map_err(broken)?;
    let schema = reader.metadata().file_metadata().schema();
    let held: Vec<String> =
        schema.get_fields().iter().map(|field| field.name().to_string()).collect();
    column_places(path, names, &held)?;
    // Read no other column. A name may stand twice in `names`.
    let wanted = schema.get_fields().iter().filter(|field| names.contains(&field.name()));
    let wanted = Type::group_type_builder(schema.name()).with_fields(wanted.cloned().collect());
    let wanted = wanted.build().map_err(broken)?;
    let mut values = vec![None; names.len()];
    for (row, number) in reader.get_row_iter(Some(wanted)).map_err(broken)?.zip(1..) {
        for (held, field) in row.map_err(broken)?.get_column_iter() {
            let text = text_of(field)
                .map_err(|problem| error(format!("row {number}, column `{held}`: {problem}")))?;
            for (value, _) in values.iter_mut().zip(names).filter(|(_, name)| *name == held) {
                value.clone_from(&text);
            }
        }
        each(number, &values)?;
    }
    Ok(())
}

/// A value as text. `None` if it is null.
fn text_of(field: &Field) -> Result<Option<String>, String> {
    Ok(Some(match field {
        Field::Null => return Ok(None),
        Field::Str(text) => text.clone(),
        Field::Bool(truth) => truth.to_string(),
        // As a float, a large id would be another one.
        Field::Long(number) => number.to_string(),
        Field::ULong(number) => number.to_string(),
        Field::Float(number) => f64::from(*number).to_string(),
        Field::Double(number) => number.to_string(),
        Field::Decimal(decimal) => parquet_decimal::text(decimal)?,
        other => {
            let mut nested = Nested::default();
            flatten(other, 0, &mut nested)?;
            match nested.numbers[..] {
                [number] => number.to_string(),
                _ => return Err(format!("expected a number or a text, found {}", kind(other))),
            }
        }
    }))
}

/// Collects the numbers of nested lists. The file's schema bounds the nesting depth.
fn flatten(field: &Field, depth: usize, into: &mut Nested) -> Result<(), String> {
    let number = match field {
        Field::ListInternal(list) => {
            into.list(depth, list.len())?;
            return list.elements().iter().try_for_each(|item| flatten(item, depth + 1, into));
        }
        Field::Bool(truth) => f64::from(u8::from(*truth)),
        Field::Byte(number) => f64::from(*number),
        Field::Short(number) => f64::from(*number),
        Field::Int(number) => f64::from(*number),
        Field::Long(number) => *number as f64,
        Field::UByte(number) => f64::from(*number),
        Field::UShort(number) => f64::from(*number),
        Field::UInt(number) => f64::from(*number),
        Field::ULong(number) => *number as f64,
        Field::Float16(number) => f64::from(*number),
        Field::Float(number) => f64::from(*number),
        Field::Double(number) => *number,
        Field::Decimal(decimal) => parquet_decimal::number(decimal)?,
        // A column of texts. `columns` makes categories of them.
        Field::Str(_) if depth == 0 => {
            let found = kind(field);
            return Err(format!("expected numbers, found {found}; name the columns in `columns`"));
        }
        other => return Err(format!("expected numbers, found {}", kind(other))),
    };
    into.number(depth, number)
}

/// A value as errors show it. Bytes and structs are shown by their kind, not by their content.
fn kind(field: &Field) -> String {
    match field {
        Field::Bytes(_) => format!("bytes{PICTURES}"),
        Field::Group(row) => {
            let names = row.get_column_iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>();
            let of_pictures = names.contains(&"bytes");
            let names = shown(names.join(", "));
            format!("a struct of {names}{}", if of_pictures { PICTURES } else { "" })
        }
        other => shown(other),
    }
}
