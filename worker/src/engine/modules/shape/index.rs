//! Elements of a dimension, selected by whole numbers.

use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::two_inputs;
use layerspec::layers::Index;
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for Index {
    /// libtorch refuses a number outside the dimension. On a GPU it does so when it computes, some
    /// time later. If the input is a parameter, `passes/index_range.rs` finds such a number before.
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [input, index] = two_inputs(inputs)?;
        let size = input.size();
        let rank = i64::try_from(size.len()).unwrap_or(i64::MAX);
        let along = if self.dim < 0 { self.dim.saturating_add(rank) } else { self.dim };
        let along = usize::try_from(along).ok().filter(|along| *along < size.len());
        let along = along.ok_or_else(|| {
            layer_error(format!("there is no dimension {} in {size:?}", self.dim))
        })?;
        let (before, rest) = size.split_at(along);
        let after = rest.get(1..).unwrap_or_default();
        let output = [before, &index.size(), after].concat();
        // Its backward pass adds row after row, in the order of the index.
        let selected = input.f_index_select(self.dim, &index.f_flatten(0, -1)?)?;
        Ok(vec![selected.f_reshape(&output[..])?])
    }
}
