use crate::engine::error::layer_error;
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::layers::op_gradients::OpGradients;
use crate::engine::modules::helpers::{single_grad, single_input};
use layerspec::layers::Linear;
use tch::Tensor;
use tensor::TensorError;

impl Op for Linear {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let input = single_input(inputs)?;
        let (rows, matrix) = (rows(&input)?, matrix(self, ctx)?);
        let output = match ctx.optional_param("bias") {
            Some(bias) => bias.f_addmm(&rows, &matrix)?,
            None => rows.f_mm(&matrix)?,
        };
        let output = unrolled(output, &input)?;
        Ok(ForwardOutput::with_tensors(
            output,
            if ctx.saves_for_backward() && ctx.trains() { vec![rows] } else { Vec::new() },
        ))
    }

    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let grad = single_grad(grads)?;
        let of_rows = rows(&grad)?;
        let of_input = match ctx.needs_input_grad(0) {
            true => Some(unrolled(of_rows.f_mm(&matrix(self, ctx)?.f_tr()?)?, &grad)?),
            false => None,
        };
        let weight_inputs = if ctx.trains() {
            saved.tensors.into_iter().chain([of_rows]).collect()
        } else {
            Vec::new()
        };
        Ok(BackwardOutput { inputs: vec![of_input], weight_inputs })
    }

    /// The matrix product adds to the sum directly. For long inner dimensions this has other bits
    /// than a product and then a sum.
    fn backward_weight(
        &self,
        _: &OpContext<'_>,
        weight_inputs: Vec<Tensor>,
        grads: &mut OpGradients<'_>,
    ) -> Result<(), TensorError> {
        let [rows, grad] =
            SavedForBackward { tensors: weight_inputs, sizes: Vec::new() }.tensors()?;
        if let Some(sum) = grads.buffer("weight") {
            match self.transposed {
                true => sum.add_product(&rows, &grad)?,
                false => sum.add_product(&grad, &rows)?,
            }
        }
        if let Some(sum) = grads.buffer("bias") {
            sum.add(grad.f_sum_dim_intlist(0, false, None)?)?;
        }
        Ok(())
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::FromInputs
    }

    fn runs_in_autocast(&self) -> bool {
        true
    }

    fn save_inputs(
        &self,
        ctx: &OpContext<'_>,
        inputs: &[Tensor],
    ) -> Result<SavedForBackward, TensorError> {
        let input = inputs.first().filter(|_| ctx.trains());
        Ok(SavedForBackward {
            tensors: input.map(rows).transpose()?.into_iter().collect(),
            sizes: Vec::new(),
        })
    }
}

/// The matrix by which rows are multiplied, from features of the input to those of the output.
fn matrix(layer: &Linear, ctx: &OpContext<'_>) -> Result<Tensor, TensorError> {
    let weight = ctx.param("weight")?;
    Ok(if layer.transposed { weight.shallow_clone() } else { weight.f_tr()? })
}

/// The tensor as a matrix of rows along its last dimension.
fn rows(tensor: &Tensor) -> Result<Tensor, TensorError> {
    let size = tensor.size();
    match &size[..] {
        [_, _] => Ok(tensor.shallow_clone()),
        [outer @ .., last] => {
            // Not `f_view`, which keeps a reference to its base, so that neither could be written
            // to.
            Ok(tensor.f_contiguous()?.f_internal_unsafe_view([outer.iter().product(), *last])?)
        }
        [] => Err(layer_error("expected an input of one dimension or more")),
    }
}

/// A matrix with the outer dimensions of `like`.
fn unrolled(rows: Tensor, like: &Tensor) -> Result<Tensor, TensorError> {
    let mut size = like.size();
    if size.len() == 2 {
        return Ok(rows);
    }
    if let (Some(last), Some(width)) = (size.last_mut(), rows.size().last()) {
        *last = *width;
    }
    Ok(rows.f_internal_unsafe_view(&size[..])?)
}
