//! Samples from comma-separated text, plain or gzipped.

use super::{kind, sample_sizes};
use crate::BossManError;
use flate2::read::GzDecoder;
use layerspec::LayerGraph;
use pipeline::LossSpec;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use tch::{Kind, Tensor};
use tensor::TensorError;

type Samples = (Vec<(String, Tensor)>, Tensor);

pub(super) fn read(path: &Path, graph: &LayerGraph, loss: &LossSpec) -> Result<Samples, BossManError> {
    let error = |problem: String| BossManError::file(path, problem);
    let [input] = graph.inputs() else {
        return Err(error(format!(
            "csv holds one input, but the model has {}; give a .safetensors file with a tensor for each",
            graph.inputs().len()
        )));
    };
    let open = |value, what: &str| {
        let problem = || error(format!("csv needs a {what} whose sizes after the batch are all known"));
        sample_sizes(graph, value).ok_or_else(problem)
    };
    let input_sizes = open(*input, "model input")?;
    let classes = loss.classes().is_some();
    let output_sizes = match (classes, graph.outputs().first()) {
        (false, Some(output)) => open(*output, "model output")?,
        _ => Vec::new(),
    };
    let columns = |sizes: &[u64]| sizes.iter().product::<u64>() as usize;
    let rows = Rows { inputs: columns(&input_sizes), targets: columns(&output_sizes), classes };
    let (inputs, targets) = rows.read(path)?;

    let samples = (inputs.len() / rows.inputs.max(1)) as i64;
    let shape = |sizes: &[u64]| [samples].into_iter().chain(sizes.iter().map(|d| d.cast_signed())).collect::<Vec<_>>();
    let tensor = |numbers: &[f64], sizes: &[u64], kind: Kind| -> Result<Tensor, TensorError> {
        Ok(Tensor::f_from_slice(numbers)?.f_to_kind(kind)?.f_reshape(shape(sizes))?)
    };
    let target_kind = if classes { Kind::Int64 } else { Kind::Float };
    let x = tensor(&inputs, &input_sizes, kind(graph, *input))?;
    let target = tensor(&targets, &output_sizes, target_kind)?;
    Ok((vec![(graph.value(*input).name.clone(), x)], target))
}

/// How many columns belong to what.
struct Rows {
    inputs: usize,
    targets: usize,
    /// The target is the number of a class.
    classes: bool,
}

impl Rows {
    /// Reads all numbers: inputs and targets, row after row.
    fn read(&self, path: &Path) -> Result<(Vec<f64>, Vec<f64>), BossManError> {
        let error = |problem: String| BossManError::file(path, problem);
        let file = BufReader::new(File::open(path).map_err(|e| error(e.to_string()))?);
        let gzipped = path.extension().is_some_and(|e| e == "gz");
        let text: Box<dyn Read> = if gzipped { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
        let mut reader =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(text);
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        let mut record = csv::StringRecord::new();
        let mut first = true;
        while reader.read_record(&mut record).map_err(|e| error(e.to_string()))? {
            let line = record.position().map_or(0, csv::Position::line);
            let header = first && record.iter().all(|field| field.parse::<f64>().is_err());
            first = false;
            if header {
                continue;
            }
            let expected = self.inputs + self.targets;
            if record.len() != expected {
                return Err(error(format!(
                    "line {line} has {} columns; the model needs {} for its input and {} for the target",
                    record.len(),
                    self.inputs,
                    self.targets
                )));
            }
            for (column, field) in record.iter().enumerate() {
                let number: Option<f64> = field.parse().ok().filter(|n: &f64| n.is_finite());
                let problem = || error(format!("line {line}, column {}: `{field}` is not a number", column + 1));
                let number = number.ok_or_else(problem)?;
                if column >= self.inputs && self.classes && (number < 0.0 || number.fract() != 0.0) {
                    let problem = format!("line {line}, column {}: `{field}` is not a class: 0, 1, 2 ...", column + 1);
                    return Err(error(problem));
                }
                if column < self.inputs { &mut inputs } else { &mut targets }.push(number);
            }
        }
        Ok((inputs, targets))
    }
}
