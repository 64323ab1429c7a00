//! Masks of attention: blocked positions, and numbers added to scores.

use crate::engine::error::layer_error;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// The mask of later keys, and of those too far back.
#[derive(Clone, Copy)]
pub(crate) struct Causal {
    /// The number of keys before the first query.
    pub(crate) past: i64,
    /// The number of keys that a query attends to: its own and those just before it. None is all.
    pub(crate) window: Option<i64>,
}

/// All masks of an attention together; each part broadcasts to `[batch, heads, queries, keys]`.
pub(crate) struct Mask {
    /// True for blocked positions.
    blocked: Option<Tensor>,
    /// The numbers added to the scores.
    added: Option<Tensor>,
}

impl Mask {
    /// Combines the masks of queries and keys: a mask between them, one of keys, and the causal
    /// mask.
    pub(crate) fn new(
        [queries, keys]: [&Tensor; 2],
        between: Option<&Tensor>,
        padding: Option<&Tensor>,
        causal: Option<Causal>,
    ) -> Result<Self, TensorError> {
        let mut mask = Mask { blocked: None, added: None };
        let (queries_size, keys_size) = (queries.size(), keys.size());
        let [samples, heads, positions, _] = queries_size[..] else {
            return Err(layer_error(format!(
                "expected queries of four dimensions, got {queries_size:?}"
            )));
        };
        let of_keys = keys_size.get(2).copied().unwrap_or(0);
        if let Some(between) = between {
            let by_head = match between.size()[..] {
                [each, ..] if between.dim() == 3 && each == samples => between.f_unsqueeze(1)?,
                [_, ..] if between.dim() == 3 => {
                    between.f_view([samples, heads, positions, of_keys])?
                }
                _ => between.shallow_clone(),
            };
            match between.f_kind()? {
                Kind::Bool => mask.block(by_head)?,
                _ => mask.added = Some(by_head),
            }
        }
        if let Some(padding) = padding {
            mask.block(padding.f_view([samples, 1, 1, of_keys])?)?;
        }
        if let Some(Causal { past, window }) = causal {
            let all = Tensor::f_ones([positions, of_keys], (Kind::Bool, queries.device()))?;
            mask.block(all.f_triu(1 + past)?)?;
            if let Some(window) = window {
                mask.block(all.f_tril(past - window)?)?;
            }
        }
        Ok(mask)
    }

    /// The mask of a layer that takes it as libtorch does, in a form that broadcasts to the scores:
    /// true for attended positions, or numbers to add.
    pub(crate) fn from_libtorch(mask: &Tensor) -> Result<Self, TensorError> {
        Ok(match mask.f_kind()? {
            Kind::Bool => Mask { blocked: Some(mask.f_logical_not()?), added: None },
            _ => Mask { blocked: None, added: Some(mask.shallow_clone()) },
        })
    }

    /// The mask of later keys for scores of these queries and keys, `[.., positions, width]`. Their
    /// positions begin together.
    pub(crate) fn of_later([queries, keys]: [&Tensor; 2]) -> Result<Self, TensorError> {
        let positions = |tensor: &Tensor| tensor.size().iter().rev().nth(1).copied().unwrap_or(0);
        let sizes = [positions(queries), positions(keys)];
        let all = Tensor::f_ones(sizes, (Kind::Bool, queries.device()))?;
        Ok(Mask { blocked: Some(all.f_triu(1)?), added: None })
    }

    /// No mask.
    pub(crate) fn none() -> Self {
        Mask { blocked: None, added: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocked.is_none() && self.added.is_none()
    }

    fn block(&mut self, more: Tensor) -> Result<(), TensorError> {
        self.blocked = Some(match &self.blocked {
            Some(blocked) => blocked.f_logical_or(&more)?,
            None => more,
        });
        Ok(())
    }

    /// Applies the mask to the scores.
    pub(crate) fn apply_to(&self, scores: &Tensor) -> Result<Tensor, TensorError> {
        let scores = match &self.added {
            Some(added) => scores.f_add(added)?,
            None => scores.shallow_clone(),
        };
        match &self.blocked {
            Some(blocked) => Ok(scores.f_masked_fill(blocked, f64::NEG_INFINITY)?),
            None => Ok(scores),
        }
    }

    /// The mask as libtorch takes it: true for attended positions, or numbers to add to the scores.
    pub(crate) fn for_libtorch(&self) -> Result<Option<Tensor>, TensorError> {
        match (&self.added, &self.blocked) {
            (Some(added), Some(blocked)) => {
                Ok(Some(added.f_masked_fill(blocked, f64::NEG_INFINITY)?))
            }
            (Some(added), None) => Ok(Some(added.shallow_clone())),
            (None, Some(blocked)) => Ok(Some(blocked.f_logical_not()?)),
            (None, None) => Ok(None),
        }
    }
}
