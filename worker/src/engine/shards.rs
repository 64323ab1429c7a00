//! The part of a stage's parameters that this replica updates, where each replica updates another, as in ZeRO's first and
//! second stage (Rajbhandari et al. 2020).
//!
//! Here are the gradients of that part alone, and the optimizer's state for it. Every replica has all parameters; what the
//! others have updated is taken in after each step.

use super::error::EngineError;
use super::params::Params;
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
    parts: BTreeMap<(usize, usize), Range<i64>>,
}

impl Shards {
    pub(super) fn new(buckets: &[Bucket], id: Option<ShardId>) -> Self {
        let mut shards = Shards { id, ..Shards::default() };
        let Some(ShardId { replica, replicas }) = id else { return shards };
        for (number, bucket) in buckets.iter().enumerate().filter(|(_, bucket)| bucket.sharded) {
            shards.parts.extend(bucket.uses.iter().map(|used| ((used.layer, used.number), 0..0)));
            let mine = shard(bucket, replica, replicas);
            let part = |slice: &Slice| {
                let used = &bucket.uses[slice.place];
                ((used.layer, used.number), elements(slice))
            };
            shards.parts.extend(mine.iter().map(part));
            shards.buckets.insert(number, mine);
        }
        shards
    }

    /// The elements of a parameter that are this replica's, in the order of memory; nothing where all are everybody's.
    pub(super) fn part(&self, params: &Params, index: usize) -> Option<Range<i64>> {
        // What is shared out has one use.
        params.all[index].uses.first().and_then(|used| self.parts.get(used)).cloned()
    }

    /// The same for one use of a parameter.
    pub(super) fn part_of_use(&self, used: (usize, usize)) -> Option<Range<i64>> {
        self.parts.get(&used).cloned()
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
    /// Hands out copies of what this replica has updated, bucket by bucket: the slices of its shard of each that is shared
    /// out.
    pub fn hand_out_updates(
        &self,
        mut hand_out: impl FnMut(u32, Vec<Tensor>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for (bucket, slices) in &self.shards.buckets {
            let copied = |slice: &Slice| copy(&slice_of(self.param_of(*bucket, slice), &elements(slice))?);
            let slices: Result<Vec<Tensor>, TensorError> = slices.iter().map(copied).collect();
            hand_out(*bucket as u32, slices?)?;
        }
        Ok(())
    }

    /// Takes in what the other replicas have updated: for every bucket and replica the slices of its shard, none of this
    /// replica's, and none of buckets that are not shared out. Nothing changes unless all of it fits.
    pub fn all_gather(&mut self, buckets: Vec<Vec<Vec<Tensor>>>) -> Result<(), EngineError> {
        let places = self.to_gather(&buckets)?;
        self.version += 1;
        for ((bucket, slice), new) in places.into_iter().zip(buckets.into_iter().flatten().flatten()) {
            let mut here = slice_of(self.param_of(bucket, &slice), &elements(&slice))?;
            here.f_copy_(&new).map_err(TensorError::from)?;
        }
        Ok(())
    }

    /// Where each of these goes: bucket and slice; checked, for it is from other workers.
    fn to_gather(&self, buckets: &[Vec<Vec<Tensor>>]) -> Result<Vec<(usize, Slice)>, EngineError> {
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
        &self.params.all[self.params.bindings[used.layer][used.number].index].tensor
    }
}

fn elements(slice: &Slice) -> Range<i64> {
    slice.elements.start as i64..slice.elements.end as i64
}

fn wrong(problem: impl Into<String>) -> EngineError {
    EngineError::Gathered { problem: problem.into() }
}
