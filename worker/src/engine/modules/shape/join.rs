use crate::engine::error::layer_error;
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::autocast;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::{in_place_or_fresh, single_grad, two_inputs};
use layerspec::layers::{Add, Concat, Div, MaskedFill, MatMul, Mul, Stack, Sub};
use tch::{Kind, Tensor};
use tensor::{memory, TensorError};

impl Op for Add {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let sizes = if ctx.saves_for_backward() {
            inputs.iter().map(Tensor::size).collect()
        } else {
            Vec::new()
        };
        let mut inputs = inputs.into_iter();
        let first = inputs.next().ok_or_else(|| layer_error("expected an input, got none"))?;
        let total = inputs.try_fold(first, sum)?;
        let total = match self.number {
            Some(number) => in_place_or_fresh(
                total,
                |total| total.f_add_scalar_(number),
                |total| total.f_add_scalar(number),
            )?,
            None => total,
        };
        Ok(ForwardOutput::with_sizes(total, sizes))
    }

    /// Every input gets the gradient itself, summed over broadcast dimensions.
    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let grad = single_grad(grads)?;
        let size = grad.size();
        let to = |(port, of_input): (usize, &Vec<i64>)| match (
            ctx.needs_input_grad(port),
            *of_input == size,
        ) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(grad.shallow_clone())),
            (true, false) => Ok(Some(grad.f_sum_to_size(&of_input[..])?)),
        };
        let inputs = saved.sizes.iter().enumerate().map(to).collect::<Result<_, TensorError>>()?;
        Ok(BackwardOutput { inputs, weight_inputs: Vec::new() })
    }
}

/// `left + right`, in the memory of one of them if that is free. The order of two terms does not
/// matter.
fn sum(left: Tensor, right: Tensor) -> Result<Tensor, TensorError> {
    let (left_kind, right_kind) = (left.f_kind()?, right.f_kind()?);
    let of_one_size = left.size() == right.size();
    let alike = of_one_size && left_kind == right_kind;
    if alike && !memory::is_uniquely_owned(&left) {
        return in_place_or_fresh(right, |right| right.f_add_(&left), |right| left.f_add(right));
    }
    // The addition widens a 16-bit type itself.
    let is_widened = left_kind == Kind::Float && autocast::is_rounded(right_kind);
    if alike || (of_one_size && is_widened) {
        return in_place_or_fresh(left, |left| left.f_add_(&right), |left| left.f_add(&right));
    }
    Ok(left.f_add(&right)?)
}

/// The sum of two inputs of one shape, within a layer.
#[derive(Debug)]
pub(crate) struct Residual;

impl Op for Residual {
    fn forward(
        &self,
        _: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        match <[Tensor; 2]>::try_from(inputs) {
            Ok([left, right]) => {
                // Two terms of a 16-bit type would be added in it.
                let left = match autocast::is_rounded(left.f_kind()?) {
                    true => left.f_to_kind(Kind::Float)?,
                    false => left,
                };
                Ok(ForwardOutput::with_tensors(sum(left, right)?, Vec::new()))
            }
            Err(inputs) => Err(layer_error(format!("expected two inputs, got {}", inputs.len()))),
        }
    }

    fn backward(
        &self,
        ctx: &OpContext<'_>,
        _: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let grad = single_grad(grads)?;
        let to = |port| ctx.needs_input_grad(port).then(|| grad.shallow_clone());
        Ok(BackwardOutput { inputs: vec![to(0), to(1)], weight_inputs: Vec::new() })
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::Nothing
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn widens_inputs(&self) -> bool {
        true
    }
}

impl Differentiable for Mul {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (first, others) =
            inputs.split_first().ok_or_else(|| layer_error("expected an input, got none"))?;
        Ok(vec![others
            .iter()
            .try_fold(first.shallow_clone(), |product, other| product.f_mul(other))?])
    }
}

impl Differentiable for Sub {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [left, right] = two_inputs(inputs)?;
        Ok(vec![left.f_sub(right)?])
    }
}

impl Differentiable for Div {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [dividend, divisor] = two_inputs(inputs)?;
        Ok(vec![dividend.f_div(divisor)?])
    }
}

impl Differentiable for MatMul {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [left, right] = two_inputs(inputs)?;
        Ok(vec![left.f_matmul(right)?])
    }

    fn runs_in_autocast(&self) -> bool {
        true
    }
}

impl Differentiable for MaskedFill {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [input, mask] = two_inputs(inputs)?;
        Ok(vec![input.f_masked_fill(mask, self.value)?])
    }
}

impl Differentiable for Stack {
    fn compute(&self, _: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![Tensor::f_stack(inputs, self.dim)?])
    }
}

impl Op for Concat {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let sizes = if ctx.saves_for_backward() {
            inputs.iter().map(Tensor::size).collect()
        } else {
            Vec::new()
        };
        Ok(ForwardOutput::with_sizes(Tensor::f_cat(&inputs, self.dim)?, sizes))
    }

    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let grad = single_grad(grads)?;
        let rank = i64::try_from(grad.dim()).unwrap_or(i64::MAX);
        let dim = usize::try_from(if self.dim < 0 { self.dim + rank } else { self.dim });
        let dim = dim.map_err(|_| layer_error(format!("there is no dimension {}", self.dim)))?;
        let mut begin = 0;
        let mut inputs = Vec::with_capacity(saved.sizes.len());
        for (port, size) in saved.sizes.iter().enumerate() {
            let length = size.get(dim).copied().unwrap_or(0);
            let part = || grad.f_narrow(self.dim, begin, length);
            inputs.push(if ctx.needs_input_grad(port) { Some(part()?) } else { None });
            begin += length;
        }
        Ok(BackwardOutput { inputs, weight_inputs: Vec::new() })
    }
}
