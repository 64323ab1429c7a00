//! What a model makes of data, written to a file.

use crate::boss::BossMan;
use crate::data::{Dataset, Order};
use crate::{BossManError, StateDict};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};
use tensor::TensorError;

/// Where predictions go, by the file's ending.
pub struct Predictions {
    path: PathBuf,
    form: Form,
}

enum Form {
    /// A line a sample: the elements of the first output.
    Csv(BufWriter<File>),
    /// An object a sample: each output by its name.
    Jsonl(BufWriter<File>),
    /// A tensor for each output, of all samples; written at the end.
    Safetensors(Vec<Vec<Tensor>>),
}

impl Predictions {
    /// Begins the file: `.csv`, `.jsonl` or `.safetensors`.
    ///
    /// # Errors
    /// Another ending, or the file cannot be written.
    pub fn create(path: &Path) -> Result<Self, BossManError> {
        let file =
            || Ok::<_, BossManError>(BufWriter::new(File::create(path).map_err(|e| BossManError::file(path, e))?));
        let form = match path.extension().map(|ending| ending.to_string_lossy().into_owned()).as_deref() {
            Some("csv") => Form::Csv(file()?),
            Some("jsonl") => Form::Jsonl(file()?),
            Some("safetensors") => {
                StateDict::can_save(path)?;
                Form::Safetensors(Vec::new())
            }
            _ => return Err(BossManError::file(path, "expected a name ending in .csv, .jsonl or .safetensors")),
        };
        Ok(Predictions { path: path.to_path_buf(), form })
    }

    /// Runs all samples through the model, so many at once, and writes what comes out. Gives the number of samples.
    ///
    /// # Errors
    /// A worker failed, data cannot be read, or the file cannot be written.
    pub async fn of(mut self, boss: &mut BossMan, data: &Dataset, together: u64) -> Result<u64, BossManError> {
        let graph = boss.model().graph();
        let names: Vec<String> = graph.outputs().iter().map(|id| graph.value(*id).name.clone()).collect();
        boss.eval();
        let order = Order::new(data.samples(), None, 0);
        for start in (0..data.samples()).step_by(usize::try_from(together).unwrap_or(usize::MAX).max(1)) {
            let (x, variables) = data.inputs(&order.at(start..start.saturating_add(together)))?;
            let outputs = boss.forward_all(&x, variables).await?;
            self.write(&names, outputs)?;
        }
        self.finish(&names)?;
        Ok(data.samples())
    }

    fn write(&mut self, names: &[String], outputs: Vec<Tensor>) -> Result<(), BossManError> {
        let error = |e: std::io::Error| BossManError::file(&self.path, e);
        match &mut self.form {
            Form::Csv(file) => {
                for row in outputs.first().map(rows).transpose()?.unwrap_or_default() {
                    let numbers: Vec<String> = row.iter().map(ToString::to_string).collect();
                    writeln!(file, "{}", numbers.join(",")).map_err(error)?;
                }
            }
            Form::Jsonl(file) => {
                let columns = outputs.iter().map(nested).collect::<Result<Vec<_>, _>>()?;
                let samples = columns.first().map_or(0, Vec::len);
                let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
                for _ in 0..samples {
                    let values = names.iter().zip(&mut columns);
                    let line: Map<String, Value> =
                        values.filter_map(|(name, column)| Some((name.clone(), column.next()?))).collect();
                    writeln!(file, "{}", Value::Object(line)).map_err(error)?;
                }
            }
            Form::Safetensors(all) => all.push(outputs),
        }
        Ok(())
    }

    fn finish(self, names: &[String]) -> Result<(), BossManError> {
        match self.form {
            Form::Csv(mut file) | Form::Jsonl(mut file) => file.flush().map_err(|e| BossManError::file(&self.path, e)),
            Form::Safetensors(all) => {
                let mut whole = StateDict::default();
                for (place, name) in names.iter().enumerate() {
                    let parts: Vec<&Tensor> = all.iter().filter_map(|outputs| outputs.get(place)).collect();
                    let joined = Tensor::f_cat(&parts, 0).map_err(|e| {
                        let problem = format!("`{name}` has another shape in each batch ({e}); write .jsonl instead");
                        BossManError::file(&self.path, problem)
                    })?;
                    whole.insert(name, &joined);
                }
                whole.save(&self.path)
            }
        }
    }
}

/// The elements of each sample, as f32's shortest decimals have it.
fn rows(output: &Tensor) -> Result<Vec<Vec<f32>>, TensorError> {
    let flat = output.f_to_kind(Kind::Float)?.f_flatten(1, -1)?.f_contiguous()?;
    let width = flat.size().get(1).copied().unwrap_or(1).max(1);
    let numbers: Vec<f32> = Vec::try_from(flat.f_view(-1)?)?;
    Ok(numbers.chunks(width as usize).map(<[f32]>::to_vec).collect())
}

/// Each sample as lists in lists.
fn nested(output: &Tensor) -> Result<Vec<Value>, TensorError> {
    let sizes = output.size();
    let within = sizes.get(1..).unwrap_or_default();
    Ok(rows(output)?.into_iter().map(|row| folded(&row, within)).collect())
}

fn folded(numbers: &[f32], sizes: &[i64]) -> Value {
    match sizes.split_first() {
        None => numbers.first().map_or(Value::Null, |number| Value::from(*number)),
        Some((count, rest)) => {
            let each = numbers.len() / usize::try_from(*count).unwrap_or(1).max(1);
            Value::Array(numbers.chunks(each.max(1)).map(|part| folded(part, rest)).collect())
        }
    }
}
