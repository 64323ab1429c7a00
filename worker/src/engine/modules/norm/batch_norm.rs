use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use layerspec::layers::{BatchNorm1d, BatchNorm2d, BatchNorm3d};
use tch::Tensor;
use tensor::TensorError;

/// Batch norm over channels of any shape.
macro_rules! batch_norm {
    ($($Name:ident),*) => {$(
        impl Differentiable for $Name {
            /// Running statistics are updated in place, in the order of the calls: microbatch by
            /// microbatch; a recomputed forward pass does not update them again. If statistics are
            /// deferred, the buffers hold this microbatch's alone.
            fn compute(
                &self,
                ctx: &OpContext<'_>,
                inputs: &[Tensor],
            ) -> Result<Vec<Tensor>, TensorError> {
                let [input] = inputs else {
                    return Err(layer_error(format!("expected one input, got {}", inputs.len())));
                };
                let (weight, bias) = (ctx.optional_param("weight"), ctx.optional_param("bias"));
                if ctx.training() {
                    expect_several_values(input)?;
                }
                if ctx.is_recompute() {
                    let none: Option<&Tensor> = None;
                    return Ok(vec![
                        input.f_batch_norm(weight, bias, none, none, true, 0.0, self.eps, true)?
                    ]);
                }
                if let Some([mean, var]) = ctx.batch_statistics {
                    let (mean, var) = (Some(mean), Some(var));
                    return Ok(vec![
                        input.f_batch_norm(weight, bias, mean, var, true, 1.0, self.eps, true)?
                    ]);
                }
                let (mean, var) =
                    (ctx.optional_param("running_mean"), ctx.optional_param("running_var"));
                let learn = ctx.training();
                let momentum = match ctx.optional_param("num_batches_tracked") {
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
                Ok(vec![input
                    .f_batch_norm(weight, bias, mean, var, over_batch, momentum, self.eps, true)?])
            }
        }
    )*};
}

batch_norm! { BatchNorm1d, BatchNorm2d, BatchNorm3d }

/// The variance of a single value is undefined; PyTorch refuses it here, too.
fn expect_several_values(input: &Tensor) -> Result<(), TensorError> {
    let size = input.size();
    let per_channel: i64 =
        size.iter().enumerate().filter(|(dim, _)| *dim != 1).map(|(_, size)| size).product();
    if per_channel > 1 {
        return Ok(());
    }
    let problem = format!(
        "expected more than one value per channel when training, got {size:?}; use larger \
         microbatches"
    );
    Err(TensorError::invalid("normalising over the batch", problem))
}
