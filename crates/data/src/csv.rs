//! Reads samples from comma-separated text, plain or gzipped.

use super::array_column::ColumnWriter;
use super::column::{Column, Columns};
use super::csv_header::{check_target, counts_columns, is_header};
use super::csv_records::CsvRecords;
use super::element::Element;
use super::expected_tensor::ExpectedTensor;
use super::plain_or_gzip;
use super::shown::shown;
use crate::DataError;
use layerspec::DType;
use std::io::BufRead;
use std::path::Path;

pub(super) fn open(
    path: &Path,
    input: &ExpectedTensor,
    target: Option<&ExpectedTensor>,
) -> Result<Columns, DataError> {
    let error = |problem: String| DataError::file(path, problem);
    let sizes = |wanted: &ExpectedTensor, what: &str| {
        let problem =
            || error(format!("csv needs a {what} whose sizes after the batch are all known"));
        wanted.sizes().ok_or_else(problem)
    };
    // A class is one number, regardless of the shape of the model's output.
    let classes = target.is_some_and(|target| target.dtype == DType::Int64);
    let input_shape = sizes(input, "model input")?;
    let target_shape = match target.filter(|_| !classes) {
        Some(target) => sizes(target, "model output")?,
        None => Vec::new(),
    };
    let columns = |sizes: &[u64]| sizes.iter().product::<u64>() as usize;
    let targets = if target.is_some() { columns(&target_shape) } else { 0 };
    let element = Element::for_dtype(input.dtype);
    let of_target = target.map_or(element, |target| Element::for_dtype(target.dtype));
    let rows =
        Rows { inputs: columns(&input_shape), targets, classes, elements: [element, of_target] };
    let mut writer = ColumnWriter::new(element);
    let mut labels = target.map(|_| ColumnWriter::new(of_target));
    rows.read(path, |line, inputs, targets| {
        let error = |e: DataError| error(format!("line {line}: {e}"));
        writer.push(inputs, &input_shape).map_err(error)?;
        labels.as_mut().map_or(Ok(()), |labels| labels.push(targets, &target_shape).map_err(error))
    })?;
    let target = labels.map(|labels| labels.finish(path)).transpose()?.map(Column::Array);
    Ok(Columns { inputs: vec![Column::Array(writer.finish(path)?)], target })
}

/// Whether the first row has a column for each number of the input and of the target.
pub(super) fn has_targets(path: &Path, input: &ExpectedTensor, target: &ExpectedTensor) -> bool {
    let numbers = |sizes: Option<Vec<u64>>| Some(sizes?.iter().product::<u64>() as usize);
    let targets = if target.dtype == DType::Int64 { Some(1) } else { numbers(target.sizes()) };
    let mut record = csv::StringRecord::new();
    let first = records(path).and_then(|mut records| records.next(&mut record));
    let expected = numbers(input.sizes()).zip(targets).map(|(inputs, targets)| inputs + targets);
    matches!(first, Ok(Some(_))) && expected == Some(record.len())
}

/// Returns the line of a sample, counted from 1. Returns `None` if the file cannot be read.
pub(super) fn line_of(path: &Path, sample: i64) -> Option<u64> {
    let mut records = records(path).ok()?;
    let (mut record, mut first, mut left) = (csv::StringRecord::new(), true, sample);
    while let Some(line) = records.next(&mut record).ok()? {
        if std::mem::take(&mut first) && is_header(&record) {
            continue;
        }
        if left == 0 {
            return Some(line);
        }
        left -= 1;
    }
    None
}

fn records(path: &Path) -> Result<CsvRecords<'_, impl BufRead>, DataError> {
    let (text, _) = plain_or_gzip::open(path)?;
    Ok(CsvRecords::new(path, text, b','))
}

/// The number of columns of inputs and of targets.
struct Rows {
    inputs: usize,
    targets: usize,
    /// Whether the target is the number of a class.
    classes: bool,
    /// The element types in which inputs and targets are stored.
    elements: [Element; 2],
}

impl Rows {
    /// Calls `row` for each row with its line number, inputs and targets.
    fn read(
        &self,
        path: &Path,
        mut row: impl FnMut(u64, &[f64], &[f64]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let error = |problem: String| DataError::file(path, problem);
        let mut records = records(path)?;
        let (mut numbers, mut bytes) = (Vec::new(), Vec::new());
        let mut record = csv::StringRecord::new();
        let mut first = true;
        // The first line of separators alone. Its error depends on whether the file has samples.
        let mut blank = None;
        // The line of a first row that may be the header of pandas.
        let mut counting = None;
        let mut rows = 0;
        while let Some(line) = records.next(&mut record)? {
            let header = first && is_header(&record);
            counting = counting.or((first && counts_columns(&record)).then_some(line));
            first = false;
            if record.iter().all(str::is_empty) {
                blank = blank.or((!header).then_some(line));
                continue;
            }
            if header {
                if self.targets > 0 {
                    check_target(&record, self.inputs)
                        .map_err(|problem| error(format!("line {line} {problem}")))?;
                }
                continue;
            }
            rows += 1;
            if let Some(line) = counting.filter(|_| rows > 1) {
                return Err(error(format!(
                    "line {line} counts the columns, as the header of pandas does; delete it; if \
                     it is a sample, write 0.0 for its 0"
                )));
            }
            let expected = self.inputs + self.targets;
            if record.len() != expected {
                return Err(error(format!(
                    "line {line} has {} columns; the model needs {} for its input and {} for the \
                     target{}",
                    record.len(),
                    self.inputs,
                    self.targets,
                    other_separator(&record)
                )));
            }
            numbers.clear();
            for (column, field) in record.iter().enumerate() {
                let wrong = |problem: String| {
                    error(format!("line {line}, column {}: {problem}", column + 1))
                };
                let is_target = column >= self.inputs;
                let no_number = || wrong(no_number(field, is_target && self.classes));
                let number: f64 = field.parse().map_err(|_| no_number())?;
                if is_target && self.classes && (number < 0.0 || number.fract() != 0.0) {
                    return Err(wrong(format!("`{}` is not a class: 0, 1, 2 ...", shown(field))));
                }
                // Encode here, while the column is known, so that an error can name it.
                bytes.clear();
                self.elements[usize::from(is_target)].encode(number, &mut bytes).map_err(wrong)?;
                numbers.push(number);
            }
            let (inputs, targets) = numbers.split_at(self.inputs);
            row(line, inputs, targets)?;
        }
        match blank {
            Some(_) if rows == 0 => {
                Err(error("it holds no samples: its lines have separators alone".into()))
            }
            Some(line) => Err(error(format!("line {line} has separators alone; delete it"))),
            None => Ok(()),
        }
    }
}

/// The problem of a field that is no number, and the remedy.
fn no_number(field: &str, is_class: bool) -> String {
    match field.is_empty() {
        true => "is empty; write a number, or delete the line".to_string(),
        false if is_class => {
            let text = shown(field);
            format!("`{text}` is not a class: 0, 1, 2 ...; `columns` takes the names of classes")
        }
        false => format!("`{}` is not a number", shown(field)),
    }
}

/// A hint at the separator of a row that has only one column.
fn other_separator(record: &csv::StringRecord) -> &'static str {
    match record.get(0).filter(|_| record.len() == 1) {
        Some(row) if row.contains(';') => "; it is separated by semicolons: use commas",
        Some(row) if row.contains('\t') => "; it is separated by tabs: use commas",
        _ => "",
    }
}
