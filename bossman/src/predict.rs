//! What a model makes of data, written to a file.

use crate::boss::BossMan;
use crate::data::{Dataset, Order};
use crate::weight_files::beside;
use crate::{BossManError, StateDict};
use serde_json::{Map, Value};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};
use tempfile::NamedTempFile;
use tensor::TensorError;

/// Where predictions go, by the file's ending.
pub struct Predictions {
    path: PathBuf,
    form: Form,
}

enum Form {
    /// A line a sample: the elements of the first output.
    Csv(BufWriter<NamedTempFile>),
    /// An object a sample: each output by its name.
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
        // Beside the file, which is replaced when all is written.
        let file = || Ok::<_, BossManError>(BufWriter::new(beside(path).map_err(|e| BossManError::file(path, e))?));
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

/// The elements of each sample.
fn rows(output: &Tensor) -> Result<Vec<Vec<Value>>, TensorError> {
    let samples = output.size().first().copied().unwrap_or(1);
    let flat = output.f_reshape([samples, -1])?;
    let width = usize::try_from(flat.size().get(1).copied().unwrap_or(1)).unwrap_or(1).max(1);
    let numbers: Vec<Value> = match flat.is_floating_point() {
        true => Vec::<f32>::try_from(flat.f_to_kind(Kind::Float)?.f_reshape(-1)?)?.into_iter().map(number).collect(),
        false => {
            Vec::<i64>::try_from(flat.f_to_kind(Kind::Int64)?.f_reshape(-1)?)?.into_iter().map(Value::from).collect()
        }
    };
    Ok(numbers.chunks(width).map(<[Value]>::to_vec).collect())
}

/// The shortest decimal that reads back as the same f32; null where it is no number.
fn number(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// Each sample as lists in lists.
fn nested(output: &Tensor) -> Result<Vec<Value>, TensorError> {
    let sizes = output.size();
    let within = sizes.get(1..).unwrap_or_default();
    Ok(rows(output)?.into_iter().map(|row| folded(row, within)).collect())
}

fn folded(numbers: Vec<Value>, sizes: &[i64]) -> Value {
    match sizes.split_first() {
        None => numbers.into_iter().next().unwrap_or(Value::Null),
        Some((count, rest)) => {
            let each = (numbers.len() / usize::try_from(*count).unwrap_or(1).max(1)).max(1);
            Value::Array(numbers.chunks(each).map(|part| folded(part.to_vec(), rest)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_any_shape_and_type_become_lists() {
        let fractions = Tensor::from_slice(&[0.1f32, 2.0, -3.5, f32::NAN]);
        assert_eq!(serde_json::to_string(&nested(&fractions).unwrap()).unwrap(), "[0.1,2.0,-3.5,null]");
        let pairs = nested(&fractions.view([2, 1, 2])).unwrap();
        assert_eq!(serde_json::to_string(&pairs).unwrap(), "[[[0.1,2.0]],[[-3.5,null]]]");
        let large = Tensor::from_slice(&[1i64 << 53]).view([1, 1]);
        assert_eq!(serde_json::to_string(&nested(&large).unwrap()).unwrap(), "[[9007199254740992]]");
    }
}
