use super::by_autograd::Differentiable;
use super::{missing, of_one, update, Back, Call, Keeps, Kept, Op, Run};
use layerspec::layers::{Add, Concat, MaskedFill, MatMul, Mul, Stack, Sub};
use tch::Tensor;
use tensor::{memory, TensorError};

impl Op for Add {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let sizes = if call.keeps() { inputs.iter().map(Tensor::size).collect() } else { Vec::new() };
        let mut inputs = inputs.into_iter();
        let first = inputs.next().ok_or_else(|| missing("expected an input, got none"))?;
        Ok(Run::knowing(inputs.try_fold(first, sum)?, sizes))
    }

    /// Every input gets the gradient as it is, summed over what was broadcast.
    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let grad = of_one(grads)?;
        let size = grad.size();
        let to = |(port, of_input): (usize, &Vec<i64>)| match (call.wants(port), *of_input == size) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(grad.shallow_clone())),
            (true, false) => Ok(Some(grad.f_sum_to_size(&of_input[..])?)),
        };
        let inputs = kept.sizes.iter().enumerate().map(to).collect::<Result<_, TensorError>>()?;
        Ok(Back { inputs, rest: Vec::new() })
    }
}

/// `left + right`, in the memory of one of them where that is free. The order of two terms does not matter.
fn sum(left: Tensor, right: Tensor) -> Result<Tensor, TensorError> {
    let alike = left.size() == right.size() && left.f_kind()? == right.f_kind()?;
    if alike && !memory::is_alone(&left) {
        return update(right, |right| right.f_add_(&left), |right| left.f_add(right));
    }
    if alike {
        return update(left, |left| left.f_add_(&right), |left| left.f_add(&right));
    }
    Ok(left.f_add(&right)?)
}

/// The sum of two inputs of one shape, within a layer.
#[derive(Debug)]
pub(super) struct Residual;

impl Op for Residual {
    fn forward(&self, _: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        match <[Tensor; 2]>::try_from(inputs) {
            Ok([left, right]) => Ok(Run::keeping(sum(left, right)?, Vec::new())),
            Err(inputs) => Err(missing(format!("expected two inputs, got {}", inputs.len()))),
        }
    }

    fn backward(&self, call: &Call<'_>, _: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let grad = of_one(grads)?;
        let to = |port| call.wants(port).then(|| grad.shallow_clone());
        Ok(Back { inputs: vec![to(0), to(1)], rest: Vec::new() })
    }

    fn keeps(&self) -> Keeps {
        Keeps::Nothing
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Differentiable for Mul {
    fn compute(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (first, others) = inputs.split_first().ok_or_else(|| missing("expected an input, got none"))?;
        Ok(vec![others.iter().try_fold(first.shallow_clone(), |product, other| product.f_mul(other))?])
    }
}

impl Differentiable for Sub {
    fn compute(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [left, right] = two(inputs)?;
        Ok(vec![left.f_sub(right)?])
    }
}

impl Differentiable for MatMul {
    fn compute(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [left, right] = two(inputs)?;
        Ok(vec![left.f_matmul(right)?])
    }

    fn reduces(&self) -> bool {
        true
    }
}

impl Differentiable for MaskedFill {
    fn compute(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [input, mask] = two(inputs)?;
        Ok(vec![input.f_masked_fill(mask, self.value)?])
    }
}

impl Differentiable for Stack {
    fn compute(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![Tensor::f_stack(inputs, self.dim)?])
    }
}

/// The inputs of a layer that takes two.
pub(super) fn two(inputs: &[Tensor]) -> Result<[&Tensor; 2], TensorError> {
    match inputs {
        [left, right] => Ok([left, right]),
        _ => Err(missing(format!("expected two inputs, got {}", inputs.len()))),
    }
}

impl Op for Concat {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let sizes = if call.keeps() { inputs.iter().map(Tensor::size).collect() } else { Vec::new() };
        Ok(Run::knowing(Tensor::f_cat(&inputs, self.dim)?, sizes))
    }

    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let grad = of_one(grads)?;
        let rank = i64::try_from(grad.dim()).unwrap_or(i64::MAX);
        let dim = usize::try_from(if self.dim < 0 { self.dim + rank } else { self.dim });
        let dim = dim.map_err(|_| missing(format!("there is no dimension {}", self.dim)))?;
        let mut begin = 0;
        let mut inputs = Vec::with_capacity(kept.sizes.len());
        for (port, size) in kept.sizes.iter().enumerate() {
            let length = size.get(dim).copied().unwrap_or(0);
            let part = || grad.f_narrow(self.dim, begin, length);
            inputs.push(if call.wants(port) { Some(part()?) } else { None });
            begin += length;
        }
        Ok(Back { inputs, rest: Vec::new() })
    }
}
