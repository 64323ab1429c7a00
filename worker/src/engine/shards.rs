//! The part of a stage's parameters that this replica updates, where each replica updates another, as in ZeRO's first stage
//! (Rajbhandari et al. 2020).
//!
//! Here are the gradients of that part alone, and the optimizer's state for it. Every replica has all parameters; what the
//! others have updated is taken in after each step.

use super::error::EngineError;
use super::params::Params;
use super::state::copy;
use super::Engine;
use pipeline::replicas::{shard, Bucket, Share, Slice};
use std::collections::BTreeMap;
use std::ops::Range;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// Which elements of which parameters are this replica's.
#[derive(Debug, Default)]
pub(super) struct Shards {
    share: Option<Share>,
    /// The buckets that are shared out, by their place among all, each with this replica's slices.
    buckets: BTreeMap<usize, Vec<Slice>>,
    /// Of each parameter that is shared out, by the layer that uses it and its number there.
    parts: BTreeMap<(usize, usize), Range<i64>>,
}

impl Shards {
    pub(super) fn new(buckets: &[Bucket], share: Option<Share>) -> Self {
        let mut shards = Shards { share, ..Shards::default() };
        let Some(Share { replica, replicas }) = share else { return shards };
        for (number, bucket) in buckets.iter().enumerate().filter(|(_, bucket)| bucket.sharded) {
            shards.parts.extend(bucket.uses.iter().map(|used| ((used.layer, used.number), 0..0)));
            let mine = shard(bucket, replica, replicas);
            let part = |slice: &Slice| {
                let used = &bucket.uses[slice.place];
                ((used.layer, used.number), slice.elements.start as i64..slice.elements.end as i64)
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

    /// Whose slices of a bucket this replica takes part in summing, or all.
    pub(super) fn replica(&self, bucket: usize) -> Option<u16> {
        self.share.filter(|_| self.buckets.contains_key(&bucket)).map(|share| share.replica)
    }
}

/// Some elements of a parameter, in the parameter's own memory.
pub(super) fn slice_of(param: &Tensor, elements: &Range<i64>) -> Result<Tensor, TensorError> {
    Ok(param.f_detach()?.f_view([-1])?.f_narrow(0, elements.start, elements.end - elements.start)?)
}

impl Engine {
    /// Copies of what this replica has updated: for each bucket that is shared out the slices of its shard.
    pub fn updated(&self) -> Result<Vec<(u32, Vec<Tensor>)>, EngineError> {
        let copied = |bucket: usize, slice: &Slice| {
            let elements = slice.elements.start as i64..slice.elements.end as i64;
            copy(&slice_of(self.param_of(bucket, slice), &elements)?)
        };
        let of_bucket = |(bucket, slices): (&usize, &Vec<Slice>)| {
            let slices = slices.iter().map(|slice| copied(*bucket, slice)).collect::<Result<_, TensorError>>()?;
            Ok((*bucket as u32, slices))
        };
        let _known = self.trees.buckets()?;
        self.shards.buckets.iter().map(of_bucket).collect()
    }

    /// Takes in what the other replicas have updated: for every bucket and replica the slices of its shard, none of this
    /// replica's, and none of buckets that are not shared out.
    pub fn all_gather(&mut self, buckets: Vec<Vec<Vec<Tensor>>>) -> Result<(), EngineError> {
        let Some(Share { replica, replicas }) = self.shards.share else {
            // All that the stage has is shared with other layers.
            let nothing = buckets.iter().flatten().all(Vec::is_empty);
            return if nothing { Ok(()) } else { Err(wrong("nothing is shared out here")) };
        };
        let own = self.trees.buckets()?;
        if buckets.len() != own.len() {
            return Err(wrong(format!("expected {} buckets, got {}", own.len(), buckets.len())));
        }
        for (number, shards) in buckets.into_iter().enumerate() {
            if shards.len() != usize::from(replicas) {
                return Err(wrong(format!("expected {replicas} replicas, got {}", shards.len())));
            }
            for (other, slices) in (0..replicas).zip(shards) {
                let sent = other != replica && self.shards.buckets.contains_key(&number);
                let places = if sent { shard(&own[number], other, replicas) } else { Vec::new() };
                if places.len() != slices.len() {
                    return Err(wrong(format!("expected {} slices, got {}", places.len(), slices.len())));
                }
                for (place, new) in places.iter().zip(slices) {
                    let elements = place.elements.start as i64..place.elements.end as i64;
                    let (kind, size) = (new.f_kind().map_err(TensorError::from)?, new.size());
                    if kind != Kind::Float || size != [elements.end - elements.start] {
                        return Err(wrong(format!("expected {elements:?}, got {kind:?} {size:?}")));
                    }
                    let mut here = slice_of(self.param_of(number, place), &elements)?;
                    here.f_copy_(&new).map_err(TensorError::from)?;
                }
            }
        }
        self.version += 1;
        Ok(())
    }

    /// The parameter that a slice is of.
    fn param_of(&self, bucket: usize, slice: &Slice) -> &Tensor {
        let used = &self.stage.buckets[bucket].uses[slice.place];
        &self.params.all[self.params.bindings[used.layer][used.number].index].tensor
    }
}

fn wrong(problem: impl Into<String>) -> EngineError {
    EngineError::Gathered { problem: problem.into() }
}
