//! The inputs of a training step.

use crate::Dataset;
use std::collections::BTreeMap;
use tch::Tensor;

/// Further inputs of a model by name: all except the first.
///
/// ```
/// use data::Variables;
/// let mask = tch::Tensor::ones([2, 3], (tch::Kind::Float, tch::Device::Cpu));
/// let variables = Variables::new().with("mask", &mask);
/// assert_eq!(variables.names().collect::<Vec<_>>(), ["mask"]);
/// ```
#[derive(Debug, Default)]
pub struct Variables(BTreeMap<String, Tensor>);

impl Variables {
    /// Makes an empty set of inputs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an input. The tensor is shared, not copied.
    #[must_use]
    pub fn with(mut self, name: &str, tensor: &Tensor) -> Self {
        self.0.insert(name.to_string(), tensor.shallow_clone());
        self
    }

    /// Returns the names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the input of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }
}

/// Inputs with their targets.
///
/// ```
/// use data::Batch;
/// use tch::{Device, Kind, Tensor};
/// let x = Tensor::rand([32, 1], (Kind::Float, Device::Cpu));
/// let batch = Batch::new(&x, &x.sin());
/// ```
#[derive(Debug)]
pub struct Batch(Contents);

/// The contents of a batch.
#[derive(Debug)]
pub enum Contents {
    /// Tensors that the boss sends.
    Tensors {
        /// The model's first input.
        x: Tensor,
        /// Its other inputs.
        variables: Variables,
        /// The expected output.
        target: Tensor,
    },
    /// The numbers of samples that workers read from their own files.
    Indices(Box<SampleIndices>),
}

/// Samples of a data set whose files are on the workers; see [`Dataset::for_workers`].
#[derive(Debug)]
pub struct SampleIndices {
    /// The data set.
    pub data: Dataset,
    /// The numbers of the batch's samples.
    pub batch: Vec<i64>,
    /// The samples of the batch that is likely to come next, so that workers can read them ahead.
    /// Empty if that batch is unknown.
    pub next: Vec<i64>,
    /// The target, if it holds classes. Some of them may be ignored.
    pub target: Option<Tensor>,
}

impl Batch {
    /// Makes a batch from the model's first input and the target.
    ///
    /// For `MSELoss`, the target has the output's shape. For `CrossEntropyLoss`, it holds int64
    /// classes. Both tensors begin with the batch dimension. They are shared, not copied.
    pub fn new(x: &Tensor, target: &Tensor) -> Self {
        let (x, target) = (x.shallow_clone(), target.shallow_clone());
        Batch(Contents::Tensors { x, variables: Variables::new(), target })
    }

    /// Sets the model's other inputs. A batch of sample numbers already has them.
    #[must_use]
    pub fn with(mut self, others: Variables) -> Self {
        if let Contents::Tensors { variables, .. } = &mut self.0 {
            *variables = others;
        }
        self
    }

    /// Returns the contents.
    pub fn contents(&self) -> &Contents {
        &self.0
    }

    #[cfg(test)]
    pub(crate) fn into_contents(self) -> Contents {
        self.0
    }

    /// Returns the target, if it is known here.
    pub fn target(&self) -> Option<&Tensor> {
        match &self.0 {
            Contents::Tensors { target, .. } => Some(target),
            Contents::Indices(numbers) => numbers.target.as_ref(),
        }
    }

    pub(crate) fn of_indices(numbers: SampleIndices) -> Self {
        Batch(Contents::Indices(Box::new(numbers)))
    }
}
