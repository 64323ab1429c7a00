//! Predictions of a model, written to a file.
//!
//! ```text
//! Predictions (of a data set, batch by batch) -> described (what each line says) -> elements
//! ```

mod described;
mod elements;

use crate::data::batch_inputs::Inputs;
use crate::data::fixed_batch::FixedBatch;
use crate::data::read_ahead::ReadAhead;
use crate::data::{Dataset, Order};
use crate::session::evaluation::Outputs;
use crate::{data::atomic_file, BossMan, BossManError, Loss, StateDict};
pub use described::Meaning;
use described::{Described, Lines};
use elements::{nested, rows, Element};
use serde_json::{Map, Value};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tch::Tensor;
use tempfile::NamedTempFile;
use tensor::TensorError;

/// The format of predictions, by the file's ending.
pub struct Predictions {
    path: PathBuf,
    output: Output,
    /// What each line says, unless it is the outputs alone.
    described: Option<Described>,
    /// The columns of a `.csv`, once it has a line.
    columns: Option<usize>,
}

enum Output {
    /// A line for each sample: the elements of the first output.
    Csv(BufWriter<NamedTempFile>),
    /// An object for each sample: each output by its name.
    Jsonl(BufWriter<NamedTempFile>),
    /// A tensor for each output, of all samples; written at the end.
    Safetensors(Vec<Vec<Tensor>>),
}

impl Predictions {
    /// Begins the file: `.csv`, `.jsonl` or `.safetensors`.
    ///
    /// # Errors
    /// Another ending, or the file cannot be written.
    pub fn create(path: &Path) -> Result<Self, BossManError> {
        let output =
            match path.extension().map(|ending| ending.to_string_lossy().into_owned()).as_deref() {
                Some("csv") => Output::Csv(atomic_file::create(path)?),
                Some("jsonl") => Output::Jsonl(atomic_file::create(path)?),
                Some("safetensors") => {
                    StateDict::can_save(path)?;
                    Output::Safetensors(Vec::new())
                }
                _ => {
                    return Err(BossManError::file(
                        path,
                        "expected a name ending in .csv, .jsonl or .safetensors",
                    ))
                }
            };
        Ok(Predictions { path: path.to_path_buf(), output, described: None, columns: None })
    }

    /// Lets each line say which sample it is of. For a loss over classes it has the likeliest class
    /// and its probability in place of the outputs. A `.csv` gets a header. `.safetensors` has the
    /// outputs in any case.
    #[must_use]
    pub fn described(mut self, loss: &Loss, meaning: Meaning) -> Self {
        self.described = Some(Described::new(loss, meaning));
        self
    }

    /// Runs all samples through the model in batches, and writes the outputs.
    ///
    /// # Errors
    /// A worker failed, data cannot be read, the model's fixed batch size does not divide the
    /// samples, or the file cannot be written.
    pub async fn of(
        mut self,
        boss: &mut BossMan,
        data: &Dataset,
        together: u64,
    ) -> Result<Predicted, BossManError> {
        let graph = boss.model().graph();
        let fixed = FixedBatch::of(graph);
        fixed.as_ref().map_or(Ok(()), |fixed| fixed.check_divisible("the data", data.samples()))?;
        let together = fixed.map_or(together, |fixed| fixed.samples);
        let names: Vec<String> =
            graph.outputs().iter().map(|id| graph.value(*id).name.clone()).collect();
        boss.eval();
        let mut predicted = Predicted::default();
        let order = Order::new(data.samples(), None, 0);
        let starts =
            (0..data.samples()).step_by(usize::try_from(together).unwrap_or(usize::MAX).max(1));
        let of = data.clone();
        let mut batches =
            ReadAhead::start(starts.map(move |start| {
                Ok(of.inputs(&order.at(start..start.saturating_add(together)))?)
            }));
        loop {
            // Several for each stage and replica.
            let (mut group, mut room) = (Vec::new(), boss.trainer.evaluation_room());
            while room.is_left() {
                let Some((x, variables)) = batches.next().await? else { break };
                let inputs = Inputs::check(boss.model().graph(), &x, &variables)?;
                room.take(boss.trainer.batch_bytes(&inputs, Outputs::Fetch));
                group.push((x, variables));
            }
            if group.is_empty() {
                break;
            }
            for outputs in boss.trainer.forward_batches(&group).await? {
                let first = predicted.samples;
                predicted.count(&outputs)?;
                match &mut self.described {
                    Some(described) if !matches!(self.output, Output::Safetensors(_)) => {
                        let lines = described.lines(data, first, &names, &outputs)?;
                        self.write_lines(&lines)?;
                    }
                    _ => self.write(&names, outputs)?,
                }
            }
        }
        self.finish(&names)?;
        Ok(Predicted { samples: data.samples(), ..predicted })
    }

    fn write(&mut self, names: &[String], outputs: Vec<Tensor>) -> Result<(), BossManError> {
        let error = |e: std::io::Error| BossManError::io(&self.path, &e);
        match &mut self.output {
            Output::Csv(file) => {
                let rows = outputs.first().map(rows).transpose()?.unwrap_or_default();
                let columns = rows.first().map_or(0, Vec::len);
                expect_columns(&self.path, &mut self.columns, columns)?;
                for row in rows {
                    let numbers: Vec<String> = row.iter().map(Element::format_text).collect();
                    writeln!(file, "{}", numbers.join(",")).map_err(error)?;
                }
            }
            Output::Jsonl(file) => {
                let columns = outputs.iter().map(nested).collect::<Result<Vec<_>, _>>()?;
                let samples = columns.first().map_or(0, Vec::len);
                let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
                for _ in 0..samples {
                    let values = names.iter().zip(&mut columns);
                    let line: Map<String, Value> = values
                        .filter_map(|(name, column)| Some((name.clone(), column.next()?)))
                        .collect();
                    writeln!(file, "{}", Value::Object(line)).map_err(error)?;
                }
            }
            Output::Safetensors(all) => all.push(outputs),
        }
        Ok(())
    }

    fn write_lines(&mut self, lines: &Lines) -> Result<(), BossManError> {
        let error = |e: std::io::Error| BossManError::io(&self.path, &e);
        match &mut self.output {
            Output::Csv(file) => {
                expect_columns(&self.path, &mut self.columns, lines.columns)?;
                file.write_all(&lines.csv).map_err(error)
            }
            Output::Jsonl(file) => {
                lines.json.iter().try_for_each(|line| writeln!(file, "{line}")).map_err(error)
            }
            Output::Safetensors(_) => Ok(()),
        }
    }

    fn finish(self, names: &[String]) -> Result<(), BossManError> {
        match self.output {
            Output::Csv(file) | Output::Jsonl(file) => atomic_file::commit(&self.path, file),
            Output::Safetensors(all) => {
                let mut whole = StateDict::default();
                for (place, name) in names.iter().enumerate() {
                    let parts: Vec<&Tensor> =
                        all.iter().filter_map(|outputs| outputs.get(place)).collect();
                    let joined = Tensor::f_cat(&parts, 0).map_err(|e| {
                        let problem = format!(
                            "`{name}` has another shape in each batch ({e}); write .jsonl instead"
                        );
                        BossManError::file(&self.path, problem)
                    })?;
                    whole.insert(name, &joined);
                }
                whole.save(&self.path)
            }
        }
    }
}

/// Checks that a line of a `.csv` has as many columns as the first one.
fn expect_columns(
    path: &Path,
    first: &mut Option<usize>,
    columns: usize,
) -> Result<(), BossManError> {
    match *first.get_or_insert(columns) == columns {
        true => Ok(()),
        false => Err(BossManError::file(
            path,
            "the output has another shape in each batch; write .jsonl instead",
        )),
    }
}

/// The predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predicted {
    /// The number of samples.
    pub samples: u64,
    /// The number of samples with NaN among their outputs. NaN is written as it is.
    pub nan_samples: u64,
    /// The first sample with NaN, counted from 0.
    pub first: Option<u64>,
}

impl Predicted {
    /// Counts a batch. Each output has a row for each sample.
    fn count(&mut self, outputs: &[Tensor]) -> Result<(), TensorError> {
        let samples =
            outputs.first().and_then(|output| output.size().first().copied()).unwrap_or(0);
        let mut found = vec![false; usize::try_from(samples).unwrap_or(0)];
        for output in
            outputs.iter().filter(|output| output.is_floating_point() && output.numel() > 0)
        {
            let rows = output.size().first().copied().unwrap_or(1);
            let odd = Vec::<bool>::try_from(
                output.f_reshape([rows, -1])?.f_isnan()?.f_any_dim(1, false)?,
            )?;
            found.iter_mut().zip(odd).for_each(|(found, odd)| *found |= odd);
        }
        let first = found.iter().position(|found| *found).map(|place| self.samples + place as u64);
        self.first = self.first.or(first);
        self.nan_samples += found.iter().filter(|found| **found).count() as u64;
        self.samples += found.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_are_no_numbers_are_counted() {
        let mut predicted = Predicted::default();
        let good = Tensor::from_slice(&[1.0f32, f32::INFINITY, 3.0, 4.0]).view([2, 2]);
        let odd = Tensor::from_slice(&[1.0f32, f32::NAN]);
        predicted.count(&[good.shallow_clone(), Tensor::from_slice(&[1i64, 2])]).unwrap();
        predicted.count(&[good.shallow_clone(), odd.shallow_clone()]).unwrap();
        predicted.count(&[odd]).unwrap();
        assert_eq!(predicted, Predicted { samples: 6, nan_samples: 2, first: Some(3) });
    }
}
