//! The rows of a table as the numbers that a model takes.

use super::learned::{LearnedColumn, LearnedTable};
use super::rows::{self, Row};
use super::spec::{ColumnsSpec, InputColumns, Transform};
use crate::array_column::ColumnWriter;
use crate::column::{Column, Columns};
use crate::element::Element;
use crate::expected_tensor::ExpectedTensor;
use crate::shown::shown;
use crate::DataError;
use layerspec::DType;
use std::path::Path;

/// An input or the target: its columns, and how they are encoded.
struct Part<'a> {
    columns: Vec<(&'a str, &'a LearnedColumn)>,
    encoding: Encoding,
    writer: ColumnWriter,
    shape: Vec<u64>,
}

/// How a value becomes numbers.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Encoding {
    /// A number as it is or normalized, a text as one number for each category.
    Numbers { normalize: bool },
    /// A text as the position of its category.
    Index,
    /// A target: a text as the number of its class, a number after its transform.
    Target(Transform),
}

pub(super) fn open(
    path: &Path,
    spec: &ColumnsSpec,
    learned: &LearnedTable,
    inputs: &[ExpectedTensor],
    target: Option<&ExpectedTensor>,
) -> Result<Columns, DataError> {
    let error = |problem: String| DataError::file(path, problem);
    let mut parts = Vec::new();
    for (input, columns) in columns_of(spec, inputs).map_err(error)? {
        parts.push(Part::of_input(spec, learned, input, columns).map_err(error)?);
    }
    if let Some(target) = target {
        parts.push(Part::of_target(spec, learned, target).map_err(error)?);
    }
    let names: Vec<&str> =
        parts.iter().flat_map(|part| part.columns.iter().map(|(name, _)| *name)).collect();
    let mut numbers = Vec::new();
    rows::read(path, &names, &mut |row: Row<'_>| {
        let at = |problem: String| DataError::file(path, format!("{}{problem}", row.place));
        let values = row.values();
        let mut values = values.iter();
        for part in &mut parts {
            numbers.clear();
            for ((name, column), value) in part.columns.iter().zip(&mut values) {
                encode(column, part.encoding, *value, &mut numbers)
                    .map_err(|problem| at(format!(", column `{name}`: {problem}")))?;
            }
            let pushed = part.writer.push(&numbers, &part.shape);
            pushed.map_err(|problem| at(format!(", {}: {problem}", part.names())))?;
        }
        Ok(())
    })?;
    let target = if target.is_some() { parts.pop() } else { None };
    let finish = |part: Part<'_>| Ok::<_, DataError>(Column::Array(part.writer.finish(path)?));
    Ok(Columns {
        inputs: parts.into_iter().map(finish).collect::<Result<_, _>>()?,
        target: target.map(finish).transpose()?,
    })
}

/// The columns of each input of the model, in the model's order.
fn columns_of<'a>(
    spec: &'a ColumnsSpec,
    inputs: &'a [ExpectedTensor],
) -> Result<Vec<(&'a ExpectedTensor, &'a [String])>, String> {
    let known = || inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ");
    match &spec.inputs {
        InputColumns::Only(columns) => match inputs {
            [only] => Ok(vec![(only, columns)]),
            _ => Err(format!(
                "`columns` gives the inputs as one list, but the model has {}: {}; give a list for \
                 each, as `inputs: {{{}: [...]}}`",
                inputs.len(),
                known(),
                inputs.first().map_or("x", |input| &input.name)
            )),
        },
        InputColumns::Named(named) => {
            let unknown = named.iter().find(|(name, _)| !inputs.iter().any(|of| of.name == *name));
            if let Some((unknown, _)) = unknown {
                return Err(format!(
                    "the model has no input `{unknown}`; its inputs are {}",
                    known()
                ));
            }
            let of = |input: &'a ExpectedTensor| {
                let columns = named.iter().find(|(name, _)| *name == input.name);
                let columns = columns.ok_or_else(|| {
                    format!("`columns` has no columns for the model's input `{}`", input.name)
                })?;
                Ok((input, columns.1.as_slice()))
            };
            inputs.iter().map(of).collect()
        }
    }
}

impl<'a> Part<'a> {
    /// Its columns, as errors name them.
    fn names(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("{} {}", if names.len() == 1 { "column" } else { "columns" }, names.join(", "))
    }

    fn of_input(
        spec: &ColumnsSpec,
        learned: &'a LearnedTable,
        input: &ExpectedTensor,
        columns: &'a [String],
    ) -> Result<Self, String> {
        let columns = learned.of(columns)?;
        let name = &input.name;
        if matches!(input.dtype, DType::Int64 | DType::Int32) {
            for (column, learned) in &columns {
                let LearnedColumn::Text { categories, .. } = learned else {
                    return Err(format!(
                        "column `{column}` has numbers, but the model's `{name}` is {}: it takes \
                         categories of texts",
                        input.dtype
                    ));
                };
                if input.num_embeddings.is_some_and(|rows| (categories.len() as u64) > rows) {
                    return Err(format!(
                        "column `{column}` has {} categories, but the model looks `{name}` up in \
                         {} rows; set num_embeddings to {} or more",
                        categories.len(),
                        input.num_embeddings.unwrap_or(0),
                        categories.len()
                    ));
                }
            }
            let shape = if columns.len() == 1 { Vec::new() } else { vec![columns.len() as u64] };
            let writer = ColumnWriter::new(Element::for_dtype(input.dtype));
            return Ok(Part { columns, encoding: Encoding::Index, writer, shape });
        }
        let widths: Vec<u64> = columns.iter().map(|(_, column)| column.width()).collect();
        let width: u64 = widths.iter().sum();
        let wanted = input.sizes().and_then(|sizes| {
            sizes.iter().try_fold(1u64, |product, size| product.checked_mul(*size))
        });
        if wanted.is_some_and(|wanted| wanted != width) {
            let each: Vec<String> = columns
                .iter()
                .zip(&widths)
                .map(|((name, _), width)| format!("{name} {width}"))
                .collect();
            if let Some(why) = columns.iter().find_map(|(name, column)| stray_text(name, column)) {
                return Err(why);
            }
            return Err(format!(
                "the columns give {width} numbers ({}), but the model's `{name}` takes {}; set its \
                 size to {width}",
                each.join(", "),
                input.shape_in_words()
            ));
        }
        let writer = ColumnWriter::new(Element::for_dtype(input.dtype));
        let encoding = Encoding::Numbers { normalize: spec.normalize };
        Ok(Part { columns, encoding, writer, shape: vec![width] })
    }

    fn of_target(
        spec: &'a ColumnsSpec,
        learned: &'a LearnedTable,
        target: &ExpectedTensor,
    ) -> Result<Self, String> {
        let column = &spec.target.column;
        let columns = learned.of(std::slice::from_ref(column))?;
        let is_text = matches!(columns.first(), Some((_, LearnedColumn::Text { .. })));
        let is_class = target.dtype == DType::Int64;
        if is_text && !is_class {
            let stray = columns.first().and_then(|(name, column)| stray_text(name, column));
            if let Some(why) = stray {
                return Err(why);
            }
            return Err(format!(
                "the target `{column}` has texts, but the loss takes numbers; use a loss over \
                 classes, as CrossEntropyLoss"
            ));
        }
        if is_class && spec.target.transform != Transform::None {
            return Err(format!("`transform` is for numbers, but `{column}` is a class"));
        }
        let shape = target.sizes().filter(|_| !is_class).unwrap_or_default();
        if shape.iter().product::<u64>() != 1 {
            return Err(format!(
                "the model's first output is {}, but the target is the column `{column}` alone",
                target.shape_in_words()
            ));
        }
        let writer = ColumnWriter::new(Element::for_dtype(target.dtype));
        Ok(Part { columns, encoding: Encoding::Target(spec.target.transform), writer, shape })
    }
}

/// Why a column has texts, most of which are numbers.
fn stray_text(name: &str, column: &LearnedColumn) -> Option<String> {
    let LearnedColumn::Text { categories, .. } = column else { return None };
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    // A comma in place of the point makes a number a text, too.
    let odd = categories.iter().filter(|text| !is_number(&text.replacen(',', ".", 1)));
    let stray = categories.iter().find(|text| !is_number(text))?;
    (2 * odd.count() < categories.len()).then(|| {
        format!(
            "column `{name}` is one of texts because of \"{}\", which is no number; correct it, \
             or leave it empty with `missing: mean`; numbers have a point, as 5.1",
            shown(stray)
        )
    })
}

impl LearnedTable {
    fn of<'a>(&'a self, names: &'a [String]) -> Result<Vec<(&'a str, &'a LearnedColumn)>, String> {
        let one = |name: &'a String| {
            let column = self.columns.get(name).ok_or_else(|| {
                format!("column `{name}` was not learned from the table to train on")
            })?;
            Ok((name.as_str(), column))
        };
        names.iter().map(one).collect()
    }
}

impl LearnedColumn {
    /// The numbers of a value in a float input.
    fn width(&self) -> u64 {
        match self {
            LearnedColumn::Number { .. } => 1,
            LearnedColumn::Text { categories, .. } => categories.len() as u64,
        }
    }
}

const NO_NUMBER: &str = "has no value; set `missing: mean` in `columns` (or `most_common`, for up \
                         to 65536 different numbers), or delete the row";
const NO_TEXT: &str = "has no value, and texts have no mean; set `missing: most_common` in \
                       `columns`, or delete the row";
const NO_TARGET: &str = "the target has no value; delete the row";

/// Appends the numbers of a value.
fn encode(
    column: &LearnedColumn,
    encoding: Encoding,
    value: Option<&str>,
    into: &mut Vec<f64>,
) -> Result<(), String> {
    match column {
        LearnedColumn::Number { mean, std, fill } => {
            let number = match value {
                Some(value) => value
                    .parse::<f64>()
                    .ok()
                    .filter(|number| number.is_finite())
                    .ok_or_else(|| {
                        format!("`{}` is no number, as the values to train on are", shown(value))
                    })?,
                None if matches!(encoding, Encoding::Target(_)) => return Err(NO_TARGET.into()),
                None => fill.ok_or(NO_NUMBER)?,
            };
            into.push(match encoding {
                Encoding::Numbers { normalize: true } => (number - mean) / std,
                Encoding::Target(Transform::Log) if number <= 0.0 => {
                    return Err(format!("`{number}` has no logarithm"))
                }
                Encoding::Target(Transform::Log) => number.ln(),
                _ => number,
            });
        }
        LearnedColumn::Text { categories, fill } => {
            let category = match value {
                Some(value) => categories
                    .binary_search_by(|known| known.as_str().cmp(value))
                    .map_err(|_| {
                        format!(
                            "`{}` is not among the {} values to train on",
                            shown(value),
                            categories.len()
                        )
                    })?,
                None if matches!(encoding, Encoding::Target(_)) => return Err(NO_TARGET.into()),
                None => fill.ok_or(NO_TEXT)?,
            };
            match encoding {
                Encoding::Index | Encoding::Target(_) => into.push(category as f64),
                Encoding::Numbers { .. } => {
                    into.extend(
                        (0..categories.len()).map(|one| f64::from(u8::from(one == category))),
                    );
                }
            }
        }
    }
    Ok(())
}
