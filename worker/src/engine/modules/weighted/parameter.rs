//! A parameter for each sample, or by itself.

use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::layers::op_gradients::OpGradients;
use crate::engine::layout::deep_copy;
use crate::engine::modules::by_autograd::{AutogradOp, Differentiable};
use crate::engine::modules::helpers::{batch_of, repeated, single_grad, single_input_ref};
use layerspec::layers::Parameter;
use tch::{Kind, Tensor};
use tensor::{dtype_of, TensorError};

/// The op of a layer.
pub(crate) fn op(layer: Parameter) -> Box<dyn Op> {
    match layer.expand {
        true => Box::new(AutogradOp(layer)),
        false => Box::new(WholeParameter),
    }
}

/// Gives the parameter to each sample.
impl Differentiable for Parameter {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        let rows = repeated(ctx.param("value")?, batch_of(input))?;
        if !input.requires_grad() {
            return Ok(vec![rows]);
        }
        // The layer before expects a gradient, which is zero: the sum of no element is taken away.
        // That leaves every bit as it is.
        let nothing = input.f_flatten(0, -1)?.f_narrow(0, 0, 0)?.f_sum(Kind::Float)?;
        Ok(vec![rows.f_sub(&nothing)?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// Gives the parameter by itself, whose gradient is that of the output.
#[derive(Debug)]
struct WholeParameter;

impl Op for WholeParameter {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let value = ctx.param("value")?;
        // The next step changes the parameter. What a pass of a step saves of it is used before, or
        // refused. Other outputs must not change.
        let output = if ctx.has_backward() { value.f_detach()? } else { deep_copy(value)? };
        let input = single_input_ref(&inputs)?;
        let (mut tensors, mut sizes) = (Vec::new(), Vec::new());
        let is_floating = dtype_of(input)?.is_floating();
        if ctx.saves_for_backward() && ctx.needs_input_grad(0) && is_floating {
            // It stands for the input's type.
            tensors.push(Tensor::f_empty([0], (input.f_kind()?, input.device()))?);
            sizes.push(input.size());
        }
        Ok(ForwardOutput { outputs: vec![output], saved: SavedForBackward { tensors, sizes } })
    }

    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        // The layer before expects a gradient, which is zero.
        let input = match (&saved.tensors[..], &saved.sizes[..]) {
            ([like], [size]) => Some(Tensor::f_zeros(&size[..], (like.f_kind()?, like.device()))?),
            _ => None,
        };
        let weight_inputs = match ctx.trained().next() {
            Some(_) => vec![single_grad(grads)?],
            None => Vec::new(),
        };
        Ok(BackwardOutput { inputs: vec![input], weight_inputs })
    }

    fn backward_weight(
        &self,
        ctx: &OpContext<'_>,
        weight_inputs: Vec<Tensor>,
        grads: &mut OpGradients<'_>,
    ) -> Result<(), TensorError> {
        for ((role, _), grad) in ctx.trained().zip(weight_inputs) {
            if let Some(sum) = grads.buffer(role) {
                sum.add(grad)?;
            }
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
