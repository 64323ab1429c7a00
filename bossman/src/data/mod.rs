//! Samples from files, and the order in which training takes them.

mod csv;
mod safetensors;
mod shuffle;

pub use shuffle::order;

use crate::batch::{Batch, Variables};
use crate::BossManError;
use layerspec::LayerGraph;
use pipeline::LossSpec;
use std::path::Path;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// Samples in memory: a tensor for each model input, and the targets. Each begins with the sample
/// dimension.
#[derive(Debug)]
pub struct Dataset {
    /// The model's inputs, in its order.
    inputs: Vec<(String, Tensor)>,
    target: Tensor,
    samples: u64,
}

impl Dataset {
    /// Reads `.csv`, `.csv.gz` or `.safetensors`, as the model and the loss need it.
    ///
    /// CSV: one sample a line, the input's elements first, the target last; one class number for
    /// a loss over classes, as many numbers as the output has elements for any other. A first line that
    /// is not numbers is a header. Safetensors: a tensor for each model input under its name, and
    /// `target`.
    ///
    /// # Errors
    /// The file cannot be read or does not fit the model; with line and column where it has such.
    pub fn read(path: &Path, graph: &LayerGraph, loss: &LossSpec) -> Result<Self, BossManError> {
        let name = path.to_string_lossy();
        let (inputs, target) = if name.ends_with(".csv") || name.ends_with(".csv.gz") {
            csv::read(path, graph, loss)?
        } else if name.ends_with(".safetensors") {
            safetensors::read(path, graph)?
        } else {
            return Err(BossManError::file(path, "expected a file ending in .csv, .csv.gz or .safetensors"));
        };
        let count = |tensor: &Tensor| tensor.size().first().copied().unwrap_or(0).unsigned_abs();
        let samples = count(&target);
        if let Some((name, tensor)) = inputs.iter().find(|(_, tensor)| count(tensor) != samples) {
            let problem = format!("`{name}` has {} samples but the target has {samples}", count(tensor));
            return Err(BossManError::file(path, problem));
        }
        if samples == 0 {
            return Err(BossManError::file(path, "it holds no samples"));
        }
        Ok(Dataset { inputs, target, samples })
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The samples with these numbers, as a batch.
    pub fn batch(&self, numbers: &[i64]) -> Result<Batch, BossManError> {
        let index = Tensor::from_slice(numbers);
        let pick = |tensor: &Tensor| tensor.f_index_select(0, &index).map_err(TensorError::from);
        let mut inputs = self.inputs.iter();
        let (_, x) = inputs.next().ok_or_else(|| BossManError::Usage("the model has no input".into()))?;
        let mut variables = Variables::new();
        for (name, tensor) in inputs {
            variables = variables.with(name, &pick(tensor)?);
        }
        Ok(Batch::new(&pick(x)?, &pick(&self.target)?).with(variables))
    }
}

/// The sizes of one sample of a value, where they are all known.
fn sample_sizes(graph: &LayerGraph, value: layerspec::ValueId) -> Option<Vec<u64>> {
    let dims = graph.value(value).ty.dims();
    let sizes: Option<Vec<u64>> = dims.iter().skip(1).map(layerspec::Dim::as_fixed).collect();
    sizes.filter(|_| !dims.is_empty())
}

/// The libtorch kind of a model input.
fn kind(graph: &LayerGraph, value: layerspec::ValueId) -> Kind {
    tensor::kind_of(graph.value(value).ty.dtype)
}
