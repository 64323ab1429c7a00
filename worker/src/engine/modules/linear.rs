use super::{missing, of_one, one, Back, Call, Gradients, Keeps, Kept, Op, Run};
use layerspec::layers::Linear;
use tch::Tensor;
use tensor::TensorError;

impl Op for Linear {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let input = one(inputs)?;
        let (rows, weight) = (rows(&input)?, call.param("weight")?.f_tr()?);
        let output = match call.optional("bias") {
            Some(bias) => bias.f_addmm(&rows, &weight)?,
            None => rows.f_mm(&weight)?,
        };
        let output = unrolled(output, &input)?;
        Ok(Run::keeping(output, if call.keeps() && call.trains() { vec![rows] } else { Vec::new() }))
    }

    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let grad = of_one(grads)?;
        let of_rows = rows(&grad)?;
        let of_input = match call.wants(0) {
            true => Some(unrolled(of_rows.f_mm(call.param("weight")?)?, &grad)?),
            false => None,
        };
        let rest = if call.trains() { kept.tensors.into_iter().chain([of_rows]).collect() } else { Vec::new() };
        Ok(Back { inputs: vec![of_input], rest })
    }

    /// The matrix product adds straight to the sum, which for long inner dimensions is not to the bit a product and then
    /// a sum.
    fn backward_weight(&self, _: &Call<'_>, rest: Vec<Tensor>, grads: &mut Gradients<'_>) -> Result<(), TensorError> {
        let [rows, grad] = Kept { tensors: rest, sizes: Vec::new() }.tensors()?;
        if let Some(sum) = grads.of("weight") {
            sum.add_product(&grad, &rows)?;
        }
        if let Some(sum) = grads.of("bias") {
            sum.add(grad.f_sum_dim_intlist(0, false, None)?)?;
        }
        Ok(())
    }

    fn keeps(&self) -> Keeps {
        Keeps::Inputs
    }

    fn reduces(&self) -> bool {
        true
    }

    fn keep(&self, call: &Call<'_>, inputs: &[Tensor]) -> Result<Kept, TensorError> {
        let input = inputs.first().filter(|_| call.trains());
        Ok(Kept { tensors: input.map(rows).transpose()?.into_iter().collect(), sizes: Vec::new() })
    }
}

/// The tensor as a matrix of rows along its last dimension.
fn rows(tensor: &Tensor) -> Result<Tensor, TensorError> {
    let size = tensor.size();
    match &size[..] {
        [_, _] => Ok(tensor.shallow_clone()),
        [outer @ .., last] => {
            // Not `f_view`: that remembers what it is a view of, which keeps both from being written to.
            Ok(tensor.f_contiguous()?.f_internal_unsafe_view([outer.iter().product(), *last])?)
        }
        [] => Err(missing("expected an input of one dimension or more")),
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
