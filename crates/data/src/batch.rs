//! What goes into a step.

use crate::Dataset;
use std::collections::BTreeMap;
use tch::Tensor;

/// Further inputs of a model, by name: those after the first.
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
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// These and one more. The tensor is shared, not copied.
    #[must_use]
    pub fn with(mut self, name: &str, tensor: &Tensor) -> Self {
        self.0.insert(name.to_string(), tensor.shallow_clone());
        self
    }

    /// The names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }
}

/// Inputs with what the model should make of them.
///
/// ```
/// use data::Batch;
/// use tch::{Device, Kind, Tensor};
/// let x = Tensor::rand([32, 1], (Kind::Float, Device::Cpu));
/// let batch = Batch::new(&x, &x.sin());
/// ```
#[derive(Debug)]
pub struct Batch(Contents);

/// What a batch is given as.
#[derive(Debug)]
pub enum Contents {
    /// Tensors, which the boss sends.
    Tensors {
        /// The model's first input.
        x: Tensor,
        /// Its other inputs.
        variables: Variables,
        /// What the output should be.
        target: Tensor,
    },
    /// The numbers of samples, which workers read from files of their own.
    Indices(Box<SampleIndices>),
}

/// Samples of a data set of which workers have the files; see [`Dataset::for_workers`].
#[derive(Debug)]
pub struct SampleIndices {
    /// The data set.
    pub data: Dataset,
    /// Which of its samples.
    pub batch: Vec<i64>,
    /// Those of the batch that is likely to come next, so that they can be read meanwhile; none where that is not known.
    pub next: Vec<i64>,
    /// What the outputs should be, where they are classes: not each may count.
    pub target: Option<Tensor>,
}

impl Batch {
    /// The model's first input, and the target: for `MSELoss` of the output's shape, for
    /// `CrossEntropyLoss` int64 classes. Both begin with the batch dimension. Tensors are shared, not
    /// copied.
    pub fn new(x: &Tensor, target: &Tensor) -> Self {
        let (x, target) = (x.shallow_clone(), target.shallow_clone());
        Batch(Contents::Tensors { x, variables: Variables::new(), target })
    }

    /// The same with the model's other inputs. A batch of numbers has them already.
    #[must_use]
    pub fn with(mut self, others: Variables) -> Self {
        if let Contents::Tensors { variables, .. } = &mut self.0 {
            *variables = others;
        }
        self
    }

    /// What it is given as.
    pub fn contents(&self) -> &Contents {
        &self.0
    }

    #[cfg(test)]
    pub(crate) fn into_contents(self) -> Contents {
        self.0
    }

    /// What the outputs should be, where that is known here.
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
