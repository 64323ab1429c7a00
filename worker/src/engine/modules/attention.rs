//! Attention of every position to every other, between the projections of a multi-head attention.

use super::by_autograd::{ByAutograd, Differentiable};
use super::dropout::mask;
use super::{missing, of_one, one, Back, Call, Kept, Op, Run};
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// Scaled dot-product attention over queries, keys and values that lie side by side in one tensor `[.., .., 3 * width]`.
///
/// On a CPU by libtorch's blockwise kernel (Dao et al. 2022, arXiv:2205.14135), which keeps no attention weights and reads
/// queries, keys and values where they lie.
#[derive(Debug)]
pub(super) struct Attention {
    core: ByAutograd<Plain>,
}

/// The same, operation by operation: where weights are dropped or there is no blockwise kernel.
#[derive(Debug)]
struct Plain {
    heads: i64,
    batch_first: bool,
    dropout: f64,
}

impl Attention {
    pub(super) fn new(heads: i64, batch_first: bool, dropout: f64) -> Self {
        Attention { core: ByAutograd(Plain { heads, batch_first, dropout }) }
    }

    fn is_blockwise(&self, call: &Call<'_>) -> bool {
        call.device() == Device::Cpu && (self.core.0.dropout == 0.0 || !call.training())
    }
}

const NO_MASK: Option<Tensor> = None;

impl Op for Attention {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        if !self.is_blockwise(call) {
            return self.core.forward(call, inputs);
        }
        let packed = one(inputs)?;
        let [q, k, v] = self.core.0.split(&packed)?;
        let (out, logsumexp) =
            Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu(&q, &k, &v, 0.0, false, NO_MASK, None)?;
        let joined = self.core.0.join(&out)?;
        Ok(Run::keeping(joined, if call.keeps() { vec![packed, out, logsumexp] } else { Vec::new() }))
    }

    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        if !self.is_blockwise(call) {
            return self.core.backward(call, kept, grads);
        }
        let [packed, out, logsumexp] = kept.tensors()?;
        let plain = &self.core.0;
        let ([q, k, v], grad) = (plain.split(&packed)?, plain.heads_of(&of_one(grads)?)?);
        let (q, k, v) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu_backward(
            &grad, &q, &k, &v, &out, &logsumexp, 0.0, false, NO_MASK, None,
        )?;
        let parts = [plain.join(&q)?, plain.join(&k)?, plain.join(&v)?];
        Ok(Back::to(Tensor::f_cat(&parts, -1)?))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Plain {
    /// Queries, keys and values, each `[batch, heads, positions, width of a head]`.
    fn split(&self, packed: &Tensor) -> Result<[Tensor; 3], TensorError> {
        let [outer, inner, width] = self.size(packed)?;
        let parts = packed.f_view([outer, inner, 3, self.heads, width / (3 * self.heads)])?;
        let part = |index| self.swapped(&parts.f_select(2, index)?);
        Ok([part(0)?, part(1)?, part(2)?])
    }

    /// `[.., .., width]` as `[batch, heads, positions, width of a head]`.
    fn heads_of(&self, tensor: &Tensor) -> Result<Tensor, TensorError> {
        let [outer, inner, width] = self.size(tensor)?;
        self.swapped(&tensor.f_view([outer, inner, self.heads, width / self.heads])?)
    }

    fn swapped(&self, heads: &Tensor) -> Result<Tensor, TensorError> {
        let order = if self.batch_first { [0, 2, 1, 3] } else { [1, 2, 0, 3] };
        Ok(heads.f_permute(order)?)
    }

    /// Back from `[batch, heads, positions, width of a head]`.
    fn join(&self, heads: &Tensor) -> Result<Tensor, TensorError> {
        let order = if self.batch_first { [0, 2, 1, 3] } else { [2, 0, 1, 3] };
        let ordered = heads.f_permute(order)?;
        let size = ordered.size();
        Ok(ordered.f_reshape([size[0], size[1], size[2] * size[3]])?)
    }

    fn size(&self, tensor: &Tensor) -> Result<[i64; 3], TensorError> {
        let size = tensor.size();
        let three = || missing(format!("expected an input of three dimensions, got {size:?}"));
        <[i64; 3]>::try_from(&size[..]).map_err(|_| three())
    }
}

impl Differentiable for Plain {
    fn compute(&self, call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let packed = inputs.first().ok_or_else(|| missing("expected an input, got none"))?;
        let [q, k, v] = self.split(packed)?;
        if self.dropout == 0.0 || !call.training() {
            let joined = Tensor::f_scaled_dot_product_attention(&q, &k, &v, NO_MASK, 0.0, false, None, false)?;
            return Ok(vec![self.join(&joined)?]);
        }
        let width = q.size().last().copied().unwrap_or(1) as f64;
        let scores = q.f_matmul(&k.f_transpose(-2, -1)?)?.f_mul_scalar(1.0 / width.sqrt())?;
        let weights = scores.f_softmax(-1, None::<Kind>)?;
        let weights = weights.f_mul(&mask(call, "attention", &weights.size(), weights.f_kind()?, self.dropout)?)?;
        Ok(vec![self.join(&weights.f_matmul(&v)?)?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
