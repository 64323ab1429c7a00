use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::sizes::size;
use layerspec::layers::{GroupNorm, InstanceNorm2d};
use tch::Tensor;
use tensor::TensorError;

impl Differentiable for GroupNorm {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (weight, bias) = (ctx.optional_param("weight"), ctx.optional_param("bias"));
        let input = single_input_ref(inputs)?;
        if let [1, channels, rest @ ..] = &input.size()[..] {
            expect_several(
                channels * rest.iter().product::<i64>() / size(self.num_groups)?.max(1),
                input,
                "group",
            )?;
        }
        Ok(vec![input.f_group_norm(size(self.num_groups)?, weight, bias, self.eps, true)?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Differentiable for InstanceNorm2d {
    /// Running statistics as in batch norm. PyTorch never counts batches here, and without momentum
    /// they do not change.
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (weight, bias) = (ctx.optional_param("weight"), ctx.optional_param("bias"));
        let (mean, var) = (ctx.optional_param("running_mean"), ctx.optional_param("running_var"));
        let by_input = ctx.training() || mean.is_none();
        let input = single_input_ref(inputs)?;
        if by_input {
            let size = input.size();
            expect_several(
                size.get(2..).unwrap_or(&[]).iter().product(),
                input,
                "channel of each sample",
            )?;
        }
        let (mean, var, momentum) = match ctx.batch_statistics {
            _ if ctx.is_recompute() && by_input => (None, None, 0.0),
            Some([mean, var]) => (Some(mean), Some(var), 1.0),
            None => (mean, var, self.momentum.unwrap_or(0.0)),
        };
        Ok(
            vec![input
                .f_instance_norm(weight, bias, mean, var, by_input, momentum, self.eps, true)?],
        )
    }
}

/// The variance of a single value is undefined; PyTorch refuses it here, too.
fn expect_several(values: i64, input: &Tensor, what: &str) -> Result<(), TensorError> {
    if values > 1 {
        return Ok(());
    }
    Err(layer_error(format!("expected more than one value per {what}, got {:?}", input.size())))
}
