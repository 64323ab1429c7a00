//! What tells positions apart, added to them.

use super::by_autograd::Differentiable;
use super::elementwise::only;
use super::ops::Ops;
use super::{missing, of_one, one, size, update, Back, Call, Keeps, Kept, Lowered, Op, Run};
use layerspec::layers::{LearnedPositions, PositionalEncoding};
use std::ops::Range;
use tch::{Kind, Tensor};
use tensor::TensorError;

pub(super) fn lower(layer: &PositionalEncoding) -> Lowered {
    let mut ops = Ops::new(1, false);
    let dropout = layer.dropout;
    let sum = ops.add(Waves(layer.clone()), vec![0], Vec::new());
    let output = ops.dropout(sum, dropout, "dropout");
    ops.giving(output)
}

/// The sum with sines and cosines, without the dropout after it.
#[derive(Debug)]
struct Waves(PositionalEncoding);

impl Op for Waves {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let input = one(inputs)?;
        let positions = positions(call, &input, self.0.batch_first, self.0.max_len)?;
        let table = waves(&input, positions, size(self.0.d_model)?)?.f_to_kind(input.f_kind()?)?;
        let table = if self.0.batch_first { table } else { table.f_unsqueeze(1)? };
        Ok(Run::keeping(update(input, |x| x.f_add_(&table), |x| x.f_add(&table))?, Vec::new()))
    }

    fn backward(&self, _: &Call<'_>, _: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        Ok(Back::to(of_one(grads)?))
    }

    fn keeps(&self) -> Keeps {
        Keeps::Nothing
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `[positions, width]`: sines in even columns, cosines in odd ones.
fn waves(like: &Tensor, positions: Range<i64>, width: i64) -> Result<Tensor, TensorError> {
    let options = (Kind::Float, like.device());
    let columns = Tensor::f_arange_start_step(0, width, 2, options)?;
    let speeds = columns.f_mul_scalar(-10000f64.ln() / width as f64)?.f_exp()?;
    let angles = Tensor::f_arange_start(positions.start, positions.end, options)?.f_outer(&speeds)?;
    let pairs = Tensor::f_stack(&[angles.f_sin()?, angles.f_cos()?], -1)?.f_flatten(1, 2)?;
    // An odd width has no cosine in its last column.
    Ok(pairs.f_narrow(1, 0, width)?)
}

impl Differentiable for LearnedPositions {
    fn compute(&self, call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let input = only(inputs)?;
        let Range { start, end } = positions(call, input, self.batch_first, self.num_positions)?;
        let rows = call.param("weight")?.f_narrow(0, start, end - start)?;
        Ok(vec![input.f_add(&if self.batch_first { rows } else { rows.f_unsqueeze(1)? })?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The positions of a sequence, if no more than `most`: where the size is a word, it is known only now.
fn positions(call: &Call<'_>, input: &Tensor, batch_first: bool, most: u64) -> Result<Range<i64>, TensorError> {
    let (size, past) = (input.size(), call.past());
    let positions = size.get(usize::from(batch_first)).copied().unwrap_or(0);
    let end = past.saturating_add(positions);
    if end.cast_unsigned() > most {
        let before = if past > 0 { format!(" after {past} positions") } else { String::new() };
        return Err(missing(format!("expected at most {most} positions, got an input {size:?}{before}")));
    }
    Ok(past..end)
}
