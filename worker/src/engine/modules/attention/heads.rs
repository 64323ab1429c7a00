//! Attention of positions to positions, between the projections of a multi-head attention.

use crate::engine::error::layer_error;
use crate::engine::layers::kv_cache::OpCache;
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::activation::dropout::dropout_mask;
use crate::engine::modules::attention::mask::{Causal, Mask};
use crate::engine::modules::by_autograd::{AutogradOp, Differentiable};
use crate::engine::modules::helpers::{single_grad, single_input};
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// The dimensions of an attention.
#[derive(Debug, Clone)]
pub(crate) struct AttentionHeads {
    /// Heads of queries, and heads of keys and values. Each of the latter serves an equal number of
    /// query heads.
    pub(crate) queries: i64,
    pub(crate) keys: i64,
    pub(crate) batch_first: bool,
    pub(crate) dropout: f64,
    /// The purpose in the key of the random numbers.
    pub(crate) purpose: &'static str,
    /// Whether a query attends to no key at a later position.
    pub(crate) causal: bool,
    pub(crate) scores: Scores,
    /// The number of keys that a query of a causal attention attends to, if not all.
    pub(crate) window: Option<i64>,
    /// Whether an input is a mask of queries and keys, and whether the one after it is one of keys.
    pub(crate) mask: bool,
    pub(crate) padding_mask: bool,
}

/// What becomes of the product of a query and a key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scores {
    /// Its factor, if not one by the root of the size of a head.
    pub(crate) scale: Option<f64>,
    /// The number that it stays below, in size.
    pub(crate) cap: Option<f64>,
}

/// Scaled dot-product attention. Its inputs are queries, keys and values `[.., .., width]`, in one
/// tensor side by side or in three, and then the masks.
///
/// Without masks and on a CPU it uses libtorch's blockwise kernel (Dao et al. 2022,
/// arXiv:2205.14135). This stores no attention weights, and reads queries, keys and values in
/// place.
#[derive(Debug)]
pub(crate) struct Attention {
    core: AutogradOp<AttentionHeads>,
}

impl Attention {
    pub(crate) fn new(heads: AttentionHeads) -> Self {
        Attention { core: AutogradOp(heads) }
    }

    fn is_blockwise(&self, ctx: &OpContext<'_>) -> bool {
        let heads = &self.core.0;
        let is_plain = ctx.input_count() == 1 && heads.queries == heads.keys && !heads.drops(ctx);
        let is_plain = is_plain && ctx.kv_cache.is_none() && heads.window.is_none();
        let is_plain = is_plain && heads.scores.scale.is_none() && heads.scores.cap.is_none();
        is_plain && ctx.device() == Device::Cpu
    }
}

const NO_MASK: Option<Tensor> = None;

impl Op for Attention {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        if !self.is_blockwise(ctx) {
            return self.core.forward(ctx, inputs);
        }
        let (packed, heads) = (single_input(inputs)?, &self.core.0);
        let [q, k, v] = heads.split(std::slice::from_ref(&packed))?;
        let (out, logsumexp) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu(
            &q,
            &k,
            &v,
            0.0,
            heads.causal,
            NO_MASK,
            None,
        )?;
        let joined = heads.join(&out)?;
        Ok(ForwardOutput::with_tensors(
            joined,
            if ctx.saves_for_backward() { vec![packed, out, logsumexp] } else { Vec::new() },
        ))
    }

    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        if !self.is_blockwise(ctx) {
            return self.core.backward(ctx, saved, grads);
        }
        let ([packed, out, logsumexp], heads) = (saved.tensors()?, &self.core.0);
        let ([q, k, v], grad) =
            (heads.split(&[packed])?, heads.heads_of(&single_grad(grads)?, heads.queries)?);
        let (q, k, v) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu_backward(
            &grad,
            &q,
            &k,
            &v,
            &out,
            &logsumexp,
            0.0,
            heads.causal,
            NO_MASK,
            None,
        )?;
        let parts = [heads.join(&q)?, heads.join(&k)?, heads.join(&v)?];
        Ok(BackwardOutput::single_input_grad(Tensor::f_cat(&parts, -1)?))
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn runs_in_autocast(&self) -> bool {
        true
    }
}

/// Keys, values and their padding, with those of earlier positions before them. All are cached,
/// even if a window leaves early ones out.
fn append_to_cache(
    kv_cache: OpCache<'_>,
    [k, v]: [Tensor; 2],
    padding: Option<Tensor>,
) -> Result<(Tensor, Tensor, Option<Tensor>), TensorError> {
    let mut new = vec![k, v];
    if let Some(padding) = padding {
        // As in keys, positions are dimension 2.
        new.push(padding.f_unsqueeze(1)?.f_unsqueeze(-1)?);
    }
    let mut all = kv_cache.extend(new, 2)?.into_iter();
    let (Some(k), Some(v)) = (all.next(), all.next()) else {
        return Err(layer_error("keys and values are not remembered"));
    };
    Ok((k, v, all.next().map(|padding| padding.f_flatten(1, -1)).transpose()?))
}

/// The weights of the values after dropout.
pub(super) fn dropped(
    ctx: &OpContext<'_>,
    purpose: &str,
    weights: &Tensor,
    p: f64,
) -> Result<Tensor, TensorError> {
    let mask = dropout_mask(ctx, purpose, &weights.size(), weights.f_kind()?, p)?;
    Ok(weights.f_mul(&mask)?)
}

impl Scores {
    /// Attention one operation after the other. `drop` gets the weights of the values.
    pub(super) fn attend(
        &self,
        [q, k, v]: [&Tensor; 3],
        mask: &Mask,
        drop: impl FnOnce(Tensor) -> Result<Tensor, TensorError>,
    ) -> Result<Tensor, TensorError> {
        let scores = self.between(q, k)?;
        // In a 16-bit type the sum of the weights would be far from one.
        let full =
            Some(Kind::Float).filter(|_| matches!(v.f_kind(), Ok(Kind::BFloat16 | Kind::Half)));
        let weights = match mask.is_empty() {
            true => scores.f_softmax(-1, full)?,
            // Zeros if all positions are blocked.
            false => mask.apply_to(&scores)?.f_internal_safe_softmax(-1, full)?,
        };
        Ok(drop(weights)?.f_to_kind(v.f_kind()?)?.f_matmul(v)?)
    }

    /// The scores of queries and keys before they are masked.
    fn between(&self, queries: &Tensor, keys: &Tensor) -> Result<Tensor, TensorError> {
        let width = queries.size().last().copied().unwrap_or(1) as f64;
        let scale = self.scale.unwrap_or(1.0 / width.sqrt());
        let scores = queries.f_matmul(&keys.f_transpose(-2, -1)?)?.f_mul_scalar(scale)?;
        match self.cap {
            Some(cap) => Ok(scores.f_div_scalar(cap)?.f_tanh()?.f_mul_scalar(cap)?),
            None => Ok(scores),
        }
    }
}

impl AttentionHeads {
    fn drops(&self, ctx: &OpContext<'_>) -> bool {
        self.dropout != 0.0 && ctx.training()
    }

    /// What is causal about the scores of these keys. A window with room for all of them is none.
    fn causal_mask(&self, ctx: &OpContext<'_>, keys: &Tensor) -> Option<Causal> {
        let count = keys.size().get(2).copied().unwrap_or(0);
        let window = self.window.filter(|window| *window < count);
        self.causal.then(|| Causal { past: ctx.past(), window })
    }

    /// Queries, keys and values, each `[batch, heads, positions, width of a head]`.
    fn split(&self, sources: &[Tensor]) -> Result<[Tensor; 3], TensorError> {
        let parts = match sources {
            [packed] => {
                let width = packed.size().last().copied().unwrap_or(0);
                let head = width.checked_div(self.queries + 2 * self.keys).unwrap_or(0);
                let widths = [self.queries * head, self.keys * head, self.keys * head];
                packed.f_split_with_sizes(&widths[..], -1)?
            }
            several => several.iter().map(Tensor::shallow_clone).collect(),
        };
        let [q, k, v] = <[Tensor; 3]>::try_from(parts).map_err(|parts| {
            layer_error(format!("expected queries, keys and values, got {} inputs", parts.len()))
        })?;
        Ok([
            self.heads_of(&q, self.queries)?,
            self.heads_of(&k, self.keys)?,
            self.heads_of(&v, self.keys)?,
        ])
    }

    /// `[.., .., width]` as `[batch, heads, positions, width of a head]`.
    fn heads_of(&self, tensor: &Tensor, heads: i64) -> Result<Tensor, TensorError> {
        let size = tensor.size();
        let [outer, inner, width] = <[i64; 3]>::try_from(&size[..]).map_err(|_| {
            layer_error(format!("expected an input of three dimensions, got {size:?}"))
        })?;
        let parts = tensor.f_view([outer, inner, heads, width.checked_div(heads).unwrap_or(0)])?;
        Ok(parts.f_permute(if self.batch_first { [0, 2, 1, 3] } else { [1, 2, 0, 3] })?)
    }

    /// Back from `[batch, heads, positions, width of a head]`.
    fn join(&self, heads: &Tensor) -> Result<Tensor, TensorError> {
        let order = if self.batch_first { [0, 2, 1, 3] } else { [2, 0, 1, 3] };
        Ok(heads.f_permute(order)?.f_flatten(2, 3)?)
    }

    /// Keys or values, one head for each of the queries'.
    fn for_each_query(&self, heads: Tensor) -> Result<Tensor, TensorError> {
        match self.queries.checked_div(self.keys) {
            None | Some(1) => Ok(heads),
            Some(each) => Ok(heads.f_repeat_interleave_self_int(each, 1, None)?),
        }
    }
}

impl Differentiable for AttentionHeads {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let masks = usize::from(self.mask) + usize::from(self.padding_mask);
        let sources = inputs.len().saturating_sub(masks);
        let [q, k, v] = self.split(&inputs[..sources])?;
        let between = inputs.get(sources).filter(|_| self.mask);
        let padding = inputs.last().filter(|_| self.padding_mask).map(Tensor::shallow_clone);
        let (k, v, padding) = match ctx.kv_cache.filter(|_| self.causal) {
            Some(kv_cache) => append_to_cache(kv_cache, [k, v], padding)?,
            None => (k, v, padding),
        };
        let (padding, causal) = (padding.as_ref(), self.causal_mask(ctx, &k));
        let (k, v) = (self.for_each_query(k)?, self.for_each_query(v)?);
        // libtorch's kernels have no cap.
        if !self.drops(ctx) && self.scores.cap.is_none() {
            // Without masks, libtorch finds later positions itself if queries and keys begin
            // together.
            let (mask, is_causal) = match (masks, causal) {
                (0, None | Some(Causal { past: 0, window: None })) => (None, self.causal),
                _ => (Mask::new([&q, &k], between, padding, causal)?.for_libtorch()?, false),
            };
            let scale = self.scores.scale;
            // A mask gets its gradient only with single operations. Otherwise libtorch would choose
            // them only if it records a graph, and recomputed values would have other bits.
            let attended = match self.mask && ctx.needs_input_grad(sources) {
                true => {
                    Tensor::f_internal_scaled_dot_product_attention_math(
                        &q, &k, &v, mask, 0.0, is_causal, NO_MASK, scale, false,
                    )?
                    .0
                }
                false => Tensor::f_scaled_dot_product_attention(
                    &q, &k, &v, mask, 0.0, is_causal, scale, false,
                )?,
            };
            return Ok(vec![self.join(&attended)?]);
        }
        let mask = Mask::new([&q, &k], between, padding, causal)?;
        let attended =
            self.scores.attend([&q, &k, &v], &mask, |weights| match self.drops(ctx) {
                true => dropped(ctx, self.purpose, &weights, self.dropout),
                false => Ok(weights),
            })?;
        Ok(vec![self.join(&attended)?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
