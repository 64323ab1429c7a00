//! Attention without projections.

use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::attention::heads::{dropped, Scores};
use crate::engine::modules::attention::mask::Mask;
use crate::engine::modules::by_autograd::Differentiable;
use layerspec::layers::ScaledDotProductAttention;
use tch::Tensor;
use tensor::TensorError;

/// The port of the mask.
const MASK: usize = 3;

impl Differentiable for ScaledDotProductAttention {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [q, k, v, masks @ ..] = inputs else {
            let count = inputs.len();
            return Err(layer_error(format!("expected query, key and value, got {count} inputs")));
        };
        let (k, v, mask) = (for_each_query(q, k)?, for_each_query(q, v)?, masks.first());
        if self.dropout_p != 0.0 && ctx.training() {
            let mask = match mask {
                Some(mask) => Mask::from_libtorch(mask)?,
                None if self.is_causal => Mask::of_later([q, &k])?,
                None => Mask::none(),
            };
            let scores = Scores { scale: self.scale, cap: None };
            let drop = |weights: Tensor| dropped(ctx, "attention", &weights, self.dropout_p);
            return Ok(vec![scores.attend([q, &k, &v], &mask, drop)?]);
        }
        // As in the layers with projections: a mask gets its gradient only with single operations,
        // which libtorch would choose only if it records a graph.
        Ok(vec![match ctx.needs_input_grad(MASK) {
            true => {
                Tensor::f_internal_scaled_dot_product_attention_math(
                    q,
                    &k,
                    &v,
                    mask,
                    0.0,
                    self.is_causal,
                    None,
                    self.scale,
                    false,
                )?
                .0
            }
            false => Tensor::f_scaled_dot_product_attention(
                q,
                &k,
                &v,
                mask,
                0.0,
                self.is_causal,
                self.scale,
                false,
            )?,
        }])
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn runs_in_autocast(&self) -> bool {
        true
    }
}

/// Keys or values, one head for each of the queries'.
fn for_each_query(queries: &Tensor, heads: &Tensor) -> Result<Tensor, TensorError> {
    let count = |tensor: &Tensor| tensor.size().iter().rev().nth(2).copied().unwrap_or(1);
    match count(queries).checked_div(count(heads)) {
        None | Some(0 | 1) => Ok(heads.shallow_clone()),
        Some(each) => Ok(heads.f_repeat_interleave_self_int(each, -3, None)?),
    }
}
