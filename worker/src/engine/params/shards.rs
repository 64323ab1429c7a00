//! The shard of a stage's parameters that this replica updates, as in ZeRO (Rajbhandari et al.
//! 2020).
//!
//! A replica has only the gradients and the optimizer state of its shard. In ZeRO's first and
//! second stage every replica has all parameters, and loads the others' updated shards after each
//! step. In the third stage a replica stores only its shard. All parameters have memory only from
//! `ParamStore::all_gather` to `ParamStore::reshard`.

use crate::engine::config::StageConfig;
use crate::engine::layout::deep_copy;
use crate::engine::params::stage_params::{ParamUse, Params};
use pipeline::replicas::{shard, Bucket, ShardId, Slice, Use};
use std::collections::BTreeMap;
use std::ops::Range;
use tch::Tensor;
use tensor::TensorError;

/// The elements of the parameters that this replica updates.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    pub(super) id: Option<ShardId>,
    /// The sharded buckets, by their place among all, each with this replica's slices.
    pub(super) buckets: BTreeMap<usize, Vec<Slice>>,
    /// This replica's elements of each sharded parameter.
    pub(super) ranges: BTreeMap<ParamUse, Range<i64>>,
    /// If parameters are sharded: this replica's elements of each, flat.
    pub(super) own_shards: Option<BTreeMap<ParamUse, Tensor>>,
    /// Whether the parameters' memory has all elements.
    pub(super) are_gathered: bool,
}

impl Shards {
    /// The shards of a stage. If parameters are sharded, their full memory is freed here.
    pub(crate) fn new(stage: &StageConfig, params: &mut Params) -> Result<Self, TensorError> {
        let mut shards = Shards::of(&stage.buckets, stage.shard_id);
        if stage.shards_parameters {
            let kept = shards.ranges.iter().map(|(used, part)| {
                Ok((*used, deep_copy(&slice_of(params.of_use(*used), part)?)?))
            });
            shards.own_shards = Some(kept.collect::<Result<_, TensorError>>()?);
            shards.free_full_params(params)?;
        }
        Ok(shards)
    }

    fn of(buckets: &[Bucket], id: Option<ShardId>) -> Self {
        let mut shards = Shards { id, are_gathered: true, ..Shards::default() };
        let Some(ShardId { replica, replicas }) = id else { return shards };
        for (number, bucket) in buckets.iter().enumerate().filter(|(_, bucket)| bucket.sharded) {
            shards.ranges.extend(bucket.uses.iter().map(|used| (param_use(used), 0..0)));
            let mine = shard(bucket, replica, replicas);
            let part = |slice: &Slice| {
                let used = &bucket.uses[slice.place];
                (param_use(used), elements(slice))
            };
            shards.ranges.extend(mine.iter().map(part));
            shards.buckets.insert(number, mine);
        }
        shards
    }

    /// The elements of a parameter that this replica updates, in the order of memory; `None` if it
    /// is not sharded.
    pub(crate) fn shard_range(&self, params: &Params, index: usize) -> Option<Range<i64>> {
        // A sharded parameter has one use.
        params.all[index].uses.first().and_then(|used| self.ranges.get(used)).cloned()
    }

    /// The same for one use of a parameter.
    pub(crate) fn shard_range_of_use(&self, used: ParamUse) -> Option<Range<i64>> {
        self.ranges.get(&used).cloned()
    }

    /// This replica's shard of a parameter, if parameters themselves are sharded.
    pub(crate) fn own_shard(&self, params: &Params, index: usize) -> Option<&Tensor> {
        self.own_shards.as_ref()?.get(params.all[index].uses.first()?)
    }

    /// Whether this replica updates only shards of some parameters.
    pub(crate) fn are_split(&self) -> bool {
        self.id.is_some()
    }

    /// Whether the stage's parameters are all here.
    pub(crate) fn are_gathered(&self) -> bool {
        self.are_gathered
    }

    /// Frees the parameters' memory. The stand-ins have their sizes, and zeros.
    pub(super) fn free_full_params(&mut self, params: &mut Params) -> Result<(), TensorError> {
        for param in &mut params.all {
            param.rounded.take();
        }
        for used in self.own_shards.iter().flat_map(BTreeMap::keys) {
            let param = params.of_use_mut(*used);
            let zero = Tensor::f_zeros([1], (param.f_kind()?, param.device()))?;
            *param = zero.f_expand(param.size(), false)?;
        }
        self.are_gathered = self.own_shards.as_ref().is_none_or(BTreeMap::is_empty);
        Ok(())
    }

    /// The replica whose slices of a bucket arrive here as sums, if it is sharded: this one.
    pub(crate) fn replica(&self, bucket: usize) -> Option<u16> {
        self.id.filter(|_| self.buckets.contains_key(&bucket)).map(|id| id.replica)
    }
}

/// Some elements of a parameter, in the parameter's own memory.
pub(crate) fn slice_of(param: &Tensor, elements: &Range<i64>) -> Result<Tensor, TensorError> {
    let count = elements.end - elements.start;
    Ok(flat(param)?.f_narrow(0, elements.start, count)?)
}

/// All elements of a tensor, in its own memory, which is contiguous.
pub(crate) fn flat(tensor: &Tensor) -> Result<Tensor, TensorError> {
    Ok(tensor.f_detach()?.f_view([-1])?)
}

/// Copies elements of a whole to a tensor that has only `range` of it. Elements outside of that
/// range are left out. `values` are the numbers of `elements`. Both tensors are flat.
pub(crate) fn copy_elements(
    values: &Tensor,
    elements: &Range<i64>,
    own: &Tensor,
    range: &Range<i64>,
) -> Result<(), TensorError> {
    let (from, to) = (elements.start.max(range.start), elements.end.min(range.end));
    if from >= to {
        return Ok(());
    }
    tch::no_grad(|| {
        let values = values.f_narrow(0, from - elements.start, to - from)?;
        own.f_narrow(0, from - range.start, to - from)?.f_copy_(&values)?;
        Ok::<_, TensorError>(())
    })
}

/// The elements of a parameter that a slice holds.
pub(super) fn elements(slice: &Slice) -> Range<i64> {
    slice.elements.start as i64..slice.elements.end as i64
}

/// The use of a parameter whose gradients travel in a bucket.
pub(crate) fn param_use(used: &Use) -> ParamUse {
    ParamUse { layer: used.layer, number: used.number }
}
