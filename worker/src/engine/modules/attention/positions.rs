//! Encodings of positions, added to the input.

use crate::engine::error::layer_error;
use crate::engine::layers::lowered_layer::LoweredLayer;
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::builder::LayerBuilder;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::{
    in_place_or_fresh, single_grad, single_input, single_input_ref,
};
use crate::engine::sizes::size;
use layerspec::layers::{LearnedPositions, PositionalEncoding};
use std::ops::Range;
use tch::{Kind, Tensor};
use tensor::TensorError;

pub(crate) fn lower(layer: &PositionalEncoding) -> LoweredLayer {
    let mut ops = LayerBuilder::new(1, false);
    let dropout = layer.dropout;
    let sum = ops.add(SinusoidalEncoding(layer.clone()), vec![0], Vec::new());
    let output = ops.dropout(sum, dropout, "dropout");
    ops.finish(output)
}

/// The sum with sines and cosines, without the dropout after it.
#[derive(Debug)]
struct SinusoidalEncoding(PositionalEncoding);

impl Op for SinusoidalEncoding {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let input = single_input(inputs)?;
        let positions = positions(ctx, &input, self.0.batch_first, self.0.max_len)?;
        let table =
            sinusoid_table(&input, positions, size(self.0.d_model)?)?.f_to_kind(input.f_kind()?)?;
        let table = if self.0.batch_first { table } else { table.f_unsqueeze(1)? };
        Ok(ForwardOutput::with_tensors(
            in_place_or_fresh(input, |x| x.f_add_(&table), |x| x.f_add(&table))?,
            Vec::new(),
        ))
    }

    fn backward(
        &self,
        _: &OpContext<'_>,
        _: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        Ok(BackwardOutput::single_input_grad(single_grad(grads)?))
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::Nothing
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `[positions, width]`: sines in even columns, cosines in odd ones.
fn sinusoid_table(like: &Tensor, positions: Range<i64>, width: i64) -> Result<Tensor, TensorError> {
    let options = (Kind::Float, like.device());
    let columns = Tensor::f_arange_start_step(0, width, 2, options)?;
    let inverse_frequencies = columns.f_mul_scalar(-10000f64.ln() / width as f64)?.f_exp()?;
    let angles = Tensor::f_arange_start(positions.start, positions.end, options)?
        .f_outer(&inverse_frequencies)?;
    let pairs = Tensor::f_stack(&[angles.f_sin()?, angles.f_cos()?], -1)?.f_flatten(1, 2)?;
    // An odd width has no cosine in its last column.
    Ok(pairs.f_narrow(1, 0, width)?)
}

impl Differentiable for LearnedPositions {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = single_input_ref(inputs)?;
        let Range { start, end } = positions(ctx, input, self.batch_first, self.positions())?;
        let first = start.saturating_add(size(self.offset)?);
        let rows = ctx.param("weight")?.f_narrow(0, first, end - start)?;
        Ok(vec![input.f_add(&if self.batch_first { rows } else { rows.f_unsqueeze(1)? })?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The positions of a sequence, if there are at most `most`. A named dimension has a size only now.
fn positions(
    ctx: &OpContext<'_>,
    input: &Tensor,
    batch_first: bool,
    most: u64,
) -> Result<Range<i64>, TensorError> {
    let (size, past) = (input.size(), ctx.past());
    let positions = size.get(usize::from(batch_first)).copied().unwrap_or(0);
    let end = past.saturating_add(positions);
    if end.cast_unsigned() > most {
        let before = if past > 0 { format!(" after {past} positions") } else { String::new() };
        return Err(layer_error(format!(
            "expected at most {most} positions, got an input {size:?}{before}"
        )));
    }
    Ok(past..end)
}
