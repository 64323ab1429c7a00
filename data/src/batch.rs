//! What goes into a step.

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
pub struct Batch {
    pub(crate) x: Tensor,
    pub(crate) variables: Variables,
    pub(crate) target: Tensor,
}

impl Batch {
    /// The model's first input, and the target: for `MSELoss` of the output's shape, for
    /// `CrossEntropyLoss` int64 classes. Both begin with the batch dimension. Tensors are shared, not
    /// copied.
    pub fn new(x: &Tensor, target: &Tensor) -> Self {
        Batch { x: x.shallow_clone(), variables: Variables::new(), target: target.shallow_clone() }
    }

    /// The same with the model's other inputs.
    #[must_use]
    pub fn with(mut self, variables: Variables) -> Self {
        self.variables = variables;
        self
    }

    /// The model's first input.
    pub fn x(&self) -> &Tensor {
        &self.x
    }

    /// The model's other inputs.
    pub fn variables(&self) -> &Variables {
        &self.variables
    }

    /// What the output should have been.
    pub fn target(&self) -> &Tensor {
        &self.target
    }
}
