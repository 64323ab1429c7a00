//! Elements moved, reversed and repeated along dimensions.

use crate::engine::error::layer_error;
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::{single_grad, single_input, single_input_ref};
use layerspec::layers::{Expand, Flip, Roll};
use tch::Tensor;
use tensor::TensorError;

impl Op for Flip {
    fn forward(
        &self,
        _: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let output = single_input(inputs)?.f_flip(&self.dims[..])?;
        Ok(ForwardOutput::with_tensors(output, Vec::new()))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        _: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        Ok(BackwardOutput::single_input_grad(single_grad(grads)?.f_flip(&self.dims[..])?))
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::Nothing
    }
}

impl Op for Roll {
    fn forward(
        &self,
        _: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let output = rolled(self, &single_input(inputs)?, Direction::Forward)?;
        Ok(ForwardOutput::with_tensors(output, Vec::new()))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        _: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let grad = rolled(self, &single_grad(grads)?, Direction::Back)?;
        Ok(BackwardOutput::single_input_grad(grad))
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::Nothing
    }
}

/// Where elements move, as `shifts` says or back.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Direction {
    Forward,
    Back,
}

/// Shifts are taken within their dimension first, because libtorch computes with them unchecked.
fn rolled(layer: &Roll, tensor: &Tensor, direction: Direction) -> Result<Tensor, TensorError> {
    let size = tensor.size();
    let rank = i64::try_from(size.len()).unwrap_or(i64::MAX);
    let within = |(shift, dim): (&i64, &i64)| {
        let index = usize::try_from(if *dim < 0 { dim.saturating_add(rank) } else { *dim }).ok();
        let length = index.and_then(|index| size.get(index).copied());
        let length = length
            .ok_or_else(|| layer_error(format!("there is no dimension {dim} in {size:?}")))?;
        let shift = shift.checked_rem_euclid(length).unwrap_or(0);
        Ok(if direction == Direction::Back { -shift } else { shift })
    };
    let shifts = layer.shifts.iter().zip(&layer.dims).map(within);
    let shifts: Vec<i64> = shifts.collect::<Result<_, TensorError>>()?;
    Ok(tensor.f_roll(shifts, &layer.dims[..])?)
}

impl Differentiable for Expand {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![single_input_ref(inputs)?.f_expand(&self.size[..], false)?])
    }
}
