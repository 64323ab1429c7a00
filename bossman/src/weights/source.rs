//! A tensor of a file that becomes a parameter of a model, or a part of one.

use crate::BossManError;
use std::fmt::Debug;
use tch::Tensor;
use tensor::TensorError;

/// A tensor of a file, as a rule of [`super::rename_rules::RenameRules`] names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name in the file.
    pub name: String,
    /// Whether the parameter is its transpose. `Conv1D` of GPT-2 stores matrices so.
    pub is_transposed: bool,
}

impl Source {
    /// The transpose of the tensor of this name.
    #[must_use]
    pub fn transposed(name: &str) -> Self {
        Source { name: name.into(), is_transposed: true }
    }

    /// The tensor as the parameter has it.
    ///
    /// # Errors
    /// It is to be transposed and is no matrix.
    pub(crate) fn turned(&self, tensor: &Tensor) -> Result<Tensor, BossManError> {
        if !self.is_transposed {
            return Ok(tensor.shallow_clone());
        }
        let size = tensor.size();
        if size.len() != 2 {
            return Err(BossManError::StateDict(vec![self.no_matrix(&size)]));
        }
        let turned = tensor.f_transpose(0, 1).and_then(|turned| turned.f_contiguous());
        Ok(turned.map_err(TensorError::from)?)
    }

    /// The shape that a tensor of this shape has as the parameter.
    ///
    /// # Errors
    /// It is to be transposed and is no matrix.
    pub(crate) fn turned_shape(&self, shape: &[u64]) -> Result<Vec<u64>, String> {
        match (self.is_transposed, shape) {
            (false, shape) => Ok(shape.to_vec()),
            (true, [rows, columns]) => Ok(vec![*columns, *rows]),
            (true, shape) => Err(self.no_matrix(shape)),
        }
    }

    fn no_matrix<T: Debug>(&self, shape: &[T]) -> String {
        format!("`{}`: only a matrix can be transposed, got {shape:?}", self.name)
    }
}

impl From<String> for Source {
    fn from(name: String) -> Self {
        Source { name, is_transposed: false }
    }
}

impl From<&str> for Source {
    fn from(name: &str) -> Self {
        name.to_string().into()
    }
}
