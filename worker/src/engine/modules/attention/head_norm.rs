use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use crate::engine::modules::norm::rms_norm::offset_weight;
use crate::engine::sizes::size;
use tch::Tensor;
use tensor::TensorError;

/// `RMSNorm` of each head of `[batch, positions, width of all heads]`, with one weight for all.
#[derive(Debug)]
pub(crate) struct HeadNorm {
    pub(crate) head_dim: u64,
    pub(crate) eps: f64,
    /// Added to the weight.
    pub(crate) offset: f64,
}

impl Differentiable for HeadNorm {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let head = size(self.head_dim)?;
        let heads = single_input_ref(inputs)?.f_unflatten(-1, [-1, head])?;
        let weight = offset_weight(ctx, self.offset)?;
        let normed = heads.f_rms_norm([head], weight, self.eps)?;
        Ok(vec![normed.f_flatten(-2, -1)?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
