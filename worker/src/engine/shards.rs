//! The part of a stage's parameters that this replica updates, where each replica updates another, as in ZeRO (Rajbhandari et
//! al. 2020).
//!
//! Here are the gradients of that part alone, and the optimizer's state for it. In ZeRO's first and second stage every replica
//! has all parameters, and what the others have updated is taken in after each step. In its third a replica keeps its part
//! alone, apart from the parameters, whose memory there is only from [`Engine::all_gather`] to [`Engine::reshard`].

use super::error::EngineError;
use super::params::Params;
use super::stage::StageConfig;
use super::state::copy;
use super::Engine;
use pipeline::replicas::{shard, Bucket, ShardId, Slice};
use std::collections::BTreeMap;
use std::ops::Range;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// Which elements of which parameters are this replica's.
#[derive(Debug, Default)]
pub(super) struct Shards {
    id: Option<ShardId>,
    /// The buckets that are shared out, by their place among all, each with this replica's slices.
    buckets: BTreeMap<usize, Vec<Slice>>,
    /// Of each parameter that is shared out, by the layer that uses it and its number there.
    ranges: BTreeMap<(usize, usize), Range<i64>>,
    /// Where parameters are gathered for passes: this replica's elements of each, flat.
    own_shards: Option<BTreeMap<(usize, usize), Tensor>>,
    /// Whether all elements are in the parameters' memory.
    are_gathered: bool,
}

impl Shards {
    /// The shards of a stage; where parameters are gathered for passes, they have no memory of their own from here on.
    pub(super) fn new(stage: &StageConfig, params: &mut Params) -> Result<Self, TensorError> {
        let mut shards = Shards::of(&stage.buckets, stage.shard_id);
        if stage.shards_parameters {
            let kept =
                shards.ranges.iter().map(|(used, part)| Ok((*used, copy(&slice_of(params.of_use(*used), part)?)?)));
            shards.own_shards = Some(kept.collect::<Result<_, TensorError>>()?);
            shards.free_full_params(params)?;
        }
        Ok(shards)
    }

    fn of(buckets: &[Bucket], id: Option<ShardId>) -> Self {
        let mut shards = Shards { id, are_gathered: true, ..Shards::default() };
        let Some(ShardId { replica, replicas }) = id else { return shards };
        for (number, bucket) in buckets.iter().enumerate().filter(|(_, bucket)| bucket.sharded) {
            shards.ranges.extend(bucket.uses.iter().map(|used| ((used.layer, used.number), 0..0)));
            let mine = shard(bucket, replica, replicas);
            let part = |slice: &Slice| {
                let used = &bucket.uses[slice.place];
                ((used.layer, used.number), elements(slice))
            };
            shards.ranges.extend(mine.iter().map(part));
            shards.buckets.insert(number, mine);
        }
        shards
    }

    /// The elements of a parameter that are this replica's, in the order of memory; nothing where all are everybody's.
    pub(super) fn shard_range(&self, params: &Params, index: usize) -> Option<Range<i64>> {
        // A sharded parameter has one use.
        params.all[index].uses.first().and_then(|used| self.ranges.get(used)).cloned()
    }

    /// The same for one use of a parameter.
    pub(super) fn shard_range_of_use(&self, used: (usize, usize)) -> Option<Range<i64>> {
        self.ranges.get(&used).cloned()
    }

    /// This replica's part of a parameter, where parameters are gathered for passes and this is one.
    pub(super) fn own_shard(&self, params: &Params, index: usize) -> Option<&Tensor> {
        self.own_shards.as_ref()?.get(params.all[index].uses.first()?)
    }

    /// Whether the stage's parameters are all here.
    pub(super) fn are_gathered(&self) -> bool {
        self.are_gathered
    }

    /// Frees the parameters' memory. What stands for them has their sizes, and zeros.
    fn free_full_params(&mut self, params: &mut Params) -> Result<(), TensorError> {
        for used in self.own_shards.iter().flat_map(BTreeMap::keys) {
            let param = params.of_use_mut(*used);
            let zero = Tensor::f_zeros([1], (param.f_kind()?, param.device()))?;
            *param = zero.f_expand(param.size(), false)?;
        }
        self.are_gathered = self.own_shards.as_ref().is_none_or(BTreeMap::is_empty);
        Ok(())
    }

    /// Whose slices of a bucket come to this replica as sums, where not all replicas' do: its own.
    pub(super) fn replica(&self, bucket: usize) -> Option<u16> {
        self.id.filter(|_| self.buckets.contains_key(&bucket)).map(|id| id.replica)
    }
}

/// Some elements of a parameter, in the parameter's own memory.
pub(super) fn slice_of(param: &Tensor, elements: &Range<i64>) -> Result<Tensor, TensorError> {
    Ok(param.f_detach()?.f_view([-1])?.f_narrow(0, elements.start, elements.end - elements.start)?)
}

impl Engine {
    /// Hands out copies of this replica's part of the parameters, bucket by bucket: the slices of its shard of each that is
    /// shared out.
    pub fn emit_shard(
        &self,
        mut emit: impl FnMut(u32, Vec<Tensor>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for (bucket, slices) in &self.shards.buckets {
            let copied = |slice: &Slice| match self.own_shard_of(*bucket, slice) {
                Some(part) => copy(part),
                None => copy(&slice_of(self.param_of(*bucket, slice), &elements(slice))?),
            };
            let slices: Result<Vec<Tensor>, TensorError> = slices.iter().map(copied).collect();
            emit(*bucket as u32, slices?)?;
        }
        Ok(())
    }

    /// Takes in what the other replicas have updated: for every bucket and replica the slices of its shard, none of this
    /// replica's, and none of buckets that are not shared out. Nothing changes unless all of it fits.
    pub fn all_gather(&mut self, buckets: Vec<Vec<Vec<Tensor>>>) -> Result<(), EngineError> {
        let places = self.check_gathered_shards(&buckets)?;
        match &self.shards.own_shards {
            Some(_) => self.allocate_full_params()?,
            None if places.is_empty() => return Ok(()),
            None => self.version += 1,
        }
        for ((bucket, slice), new) in places.into_iter().zip(buckets.into_iter().flatten().flatten()) {
            let mut here = slice_of(self.param_of(bucket, &slice), &elements(&slice))?;
            here.f_copy_(&new).map_err(TensorError::from)?;
        }
        self.shards.are_gathered = true;
        Ok(())
    }

    /// Gives parameters memory, with this replica's part of each in it.
    fn allocate_full_params(&mut self) -> Result<(), TensorError> {
        for (used, part) in self.shards.own_shards.iter().flatten() {
            let param = self.params.of_use_mut(*used);
            *param = Tensor::f_empty(param.size(), (param.f_kind()?, param.device()))?;
            let range = self.shards.ranges.get(used).cloned().unwrap_or_default();
            slice_of(param, &range)?.f_copy_(part)?;
        }
        Ok(())
    }

    /// Lets go of the other replicas' parts of the parameters, where these are gathered for passes.
    pub fn reshard(&mut self) -> Result<(), EngineError> {
        Ok(self.shards.free_full_params(&mut self.params)?)
    }

    /// Refuses to use parameters of which only a part is here.
    pub(super) fn check_gathered(&self) -> Result<(), EngineError> {
        match self.shards.are_gathered() {
            true => Ok(()),
            false => Err(wrong("only this replica's part of the parameters is here")),
        }
    }

    /// Where each of these goes: bucket and slice; checked, for it is from other workers.
    fn check_gathered_shards(&self, buckets: &[Vec<Vec<Tensor>>]) -> Result<Vec<(usize, Slice)>, EngineError> {
        let Some(ShardId { replica, replicas }) = self.shards.id else {
            // All that the stage has is tied.
            let nothing = buckets.iter().flatten().all(Vec::is_empty);
            return if nothing { Ok(Vec::new()) } else { Err(wrong("nothing is shared out here")) };
        };
        let own = self.trees.buckets()?;
        if buckets.len() != own.len() {
            return Err(wrong(format!("expected {} buckets, got {}", own.len(), buckets.len())));
        }
        let mut places = Vec::new();
        for (number, shards) in buckets.iter().enumerate() {
            if shards.len() != usize::from(replicas) {
                return Err(wrong(format!("expected {replicas} replicas, got {}", shards.len())));
            }
            for (other, slices) in (0..replicas).zip(shards) {
                let sent = other != replica && self.shards.buckets.contains_key(&number);
                let expected = if sent { shard(&own[number], other, replicas) } else { Vec::new() };
                if expected.len() != slices.len() {
                    return Err(wrong(format!("expected {} slices, got {}", expected.len(), slices.len())));
                }
                for (slice, new) in expected.into_iter().zip(slices) {
                    let count = slice.elements.end - slice.elements.start;
                    let (kind, size) = (new.f_kind().map_err(TensorError::from)?, new.size());
                    if kind != Kind::Float || size != [count as i64] {
                        return Err(wrong(format!("expected {count} numbers, got {kind:?} {size:?}")));
                    }
                    places.push((number, slice));
                }
            }
        }
        Ok(places)
    }

    /// The parameter that a slice is of.
    fn param_of(&self, bucket: usize, slice: &Slice) -> &Tensor {
        let used = &self.stage.buckets[bucket].uses[slice.place];
        self.params.of_use((used.layer, used.number))
    }

    /// This replica's part of that parameter, if it is gathered for passes.
    fn own_shard_of(&self, bucket: usize, slice: &Slice) -> Option<&Tensor> {
        let used = &self.stage.buckets[bucket].uses[slice.place];
        self.shards.own_shards.as_ref()?.get(&(used.layer, used.number))
    }
}

fn elements(slice: &Slice) -> Range<i64> {
    slice.elements.start as i64..slice.elements.end as i64
}

fn wrong(problem: impl Into<String>) -> EngineError {
    EngineError::GatheredMismatch { problem: problem.into() }
}
