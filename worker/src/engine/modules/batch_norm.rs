use super::{Call, Module};
use layerspec::layers::BatchNorm2d;
use tch::Tensor;
use tensor::TensorError;

impl Module for BatchNorm2d {
    /// Running statistics are updated in place, in the order of the calls: microbatch by microbatch.
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        let input = call.input()?;
        let (mean, var) = (call.optional("running_mean"), call.optional("running_var"));
        let learn = call.training();
        if learn {
            expect_several_values(input)?;
        }
        let momentum = match call.optional("num_batches_tracked") {
            Some(count) if learn => {
                let count = count.shallow_clone().f_add_scalar_(1)?;
                match self.momentum {
                    Some(momentum) => momentum,
                    None => 1.0 / count.f_double_value(&[])?,
                }
            }
            _ => 0.0,
        };
        // Without running statistics evaluation normalises over its batch, too.
        let over_batch = learn || mean.is_none();
        let (weight, bias) = (call.optional("weight"), call.optional("bias"));
        Ok(vec![input.f_batch_norm(weight, bias, mean, var, over_batch, momentum, self.eps, true)?])
    }
}

/// The variance of a single value is undefined; PyTorch refuses it here, too.
fn expect_several_values(input: &Tensor) -> Result<(), TensorError> {
    let size = input.size();
    let per_channel: i64 = size.iter().enumerate().filter(|(dim, _)| *dim != 1).map(|(_, size)| size).product();
    if per_channel > 1 {
        return Ok(());
    }
    let problem =
        format!("expected more than one value per channel when training, got {size:?}; use larger microbatches");
    Err(TensorError::invalid("normalising over the batch", problem))
}
