//! A tensor of a file, for each sample or by itself.

use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::{batch_of, repeated, single_input_ref};
use tch::Tensor;
use tensor::TensorError;

/// A tensor that never changes.
#[derive(Debug)]
pub(crate) struct ConstantTensor {
    pub(crate) tensor: Tensor,
    pub(crate) expand: bool,
}

impl Differentiable for ConstantTensor {
    /// Without `expand` the output is the tensor itself. No layer writes to it, because this one
    /// keeps another reference.
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        Ok(vec![match self.expand {
            true => repeated(&self.tensor, batch_of(input))?,
            false => self.tensor.shallow_clone(),
        }])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
