//! Buckets, in which gradients travel between replicas. Each is cut into shards.
//!
//! As in PyTorch's DistributedDataParallel (Li et al. 2020), a bucket holds the gradients of layers
//! that follow each other in the backward pass. So it can leave while the rest is still computed.
//! The first bucket is small, so that it leaves early.

use super::Sharding;
use crate::norm::BLOCK;
use crate::stage_spec::StageSpec;
use layerspec::{Layer, Role};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The sizes of buckets. A bucket is closed once it has this size.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BucketBytes {
    /// The size of the first bucket, which holds the last layers of the stage: 1 MiB by default.
    pub first: u64,
    /// The size of all others: 25 MiB by default.
    pub other: u64,
}

impl Default for BucketBytes {
    fn default() -> Self {
        BucketBytes { first: 1 << 20, other: 25 << 20 }
    }
}

/// The most gradients in a bucket, so that one frame can carry them.
const MOST_USES: usize = 1024;
/// In each parameter, shards begin at multiples of this number of elements. It is a multiple of a
/// cache line and of a block of the norm.
const GRAIN: u64 = BLOCK;

/// The gradient of one parameter for one layer of the stage that uses it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Use {
    /// The layer's place in the stage.
    pub layer: usize,
    /// The parameter's place among the layer's parameters and buffers.
    pub number: usize,
    /// The number of its elements.
    pub elements: u64,
}

/// Gradients that travel together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bucket {
    /// In the order in which the backward pass completes them.
    pub uses: Vec<Use>,
    /// Whether each replica updates only its shard. Otherwise every replica updates the whole
    /// bucket.
    pub sharded: bool,
}

/// A part of one gradient of a bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slice {
    /// The gradient's place in the bucket.
    pub place: usize,
    /// The range of its elements, in the order of memory.
    pub elements: Range<u64>,
}

impl Bucket {
    /// The number of its elements.
    pub fn elements(&self) -> u64 {
        self.uses.iter().fold(0u64, |sum, used| sum.saturating_add(used.elements))
    }

    /// Its bytes, in float32.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(4)
    }
}

/// The buckets of a stage, in the order in which they are complete. They follow from the stage
/// alone.
///
/// A tied parameter is never sharded, because its gradient is a sum over layers that may be in
/// other stages.
pub fn buckets(stage: &StageSpec, bytes: BucketBytes, sharding: Option<Sharding>) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for (layer, spec) in stage.layers.iter().enumerate().rev() {
        let tied = if sharding.is_some() { stage.tied_params(spec) } else { Vec::new() };
        for (name, used) in trained(stage, layer, spec) {
            let sharded = sharding.is_some() && !tied.contains(&name);
            let most = if buckets.len() <= 1 { bytes.first } else { bytes.other };
            let open = |bucket: &&mut Bucket| {
                bucket.sharded == sharded && bucket.bytes() < most && bucket.uses.len() < MOST_USES
            };
            match buckets.last_mut().filter(open) {
                Some(bucket) => bucket.uses.push(used),
                None => buckets.push(Bucket { uses: vec![used], sharded }),
            }
        }
    }
    buckets
}

/// The parameters of a layer with gradients, by their names.
fn trained<'a>(
    stage: &'a StageSpec,
    place: usize,
    layer: &'a Layer,
) -> impl Iterator<Item = (&'static str, Use)> + 'a {
    let owner = layer.share.and_then(|owner| stage.owner(owner));
    let tied = owner.map_or(Vec::new(), |owner| layer.kind.tied_params(&owner.kind));
    let params = layer
        .kind
        .params()
        .into_iter()
        .enumerate()
        .filter(|(_, param)| param.role == Role::Parameter);
    let is_trained = move |name: &str| match tied.contains(&name) {
        true => owner.is_some_and(|owner| !owner.frozen),
        false => !layer.frozen,
    };
    params.filter(move |(_, param)| is_trained(param.name)).map(move |(number, param)| {
        // A layer with too many elements cannot be built. Until that is noticed, nothing may
        // overflow.
        let elements = param.elements().unwrap_or(u64::MAX);
        (param.name, Use { layer: place, number, elements })
    })
}

/// The part of a bucket that one of `replicas` replicas sums for all.
pub fn shard(bucket: &Bucket, replica: u16, replicas: u16) -> Vec<Slice> {
    let all = bucket.elements();
    let begin = |replica: u16| {
        let exact = u128::from(all) * u128::from(replica) / u128::from(replicas.max(1));
        match replica >= replicas {
            true => all,
            false => exact as u64,
        }
    };
    let mine = begin(replica)..begin(replica + 1);
    // Every replica cuts a gradient at the same places.
    let cut = |at: u64, end: u64, place: u64| match place >= end {
        true => end,
        false => at + place.saturating_sub(at) / GRAIN * GRAIN,
    };
    let mut at = 0u64;
    let mut slices = Vec::new();
    for (place, used) in bucket.uses.iter().enumerate() {
        let end = at.saturating_add(used.elements);
        let (from, to) = (cut(at, end, mine.start), cut(at, end, mine.end));
        if from < to {
            slices.push(Slice { place, elements: from - at..to - at });
        }
        at = end;
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_every_element_once() {
        let elements = [1000, 1, 70_000, 255, 3];
        let uses = elements.iter().enumerate().map(|(layer, elements)| Use {
            layer,
            number: 0,
            elements: *elements,
        });
        let bucket = Bucket { uses: uses.collect(), sharded: true };
        for replicas in 1..7 {
            let mut next = vec![0; elements.len()];
            for slice in (0..replicas).flat_map(|replica| shard(&bucket, replica, replicas)) {
                assert_eq!(slice.elements.start, next[slice.place], "one after the other");
                assert_eq!(slice.elements.start % GRAIN, 0, "whole blocks");
                next[slice.place] = slice.elements.end;
            }
            assert_eq!(next, elements);
        }
    }

    #[test]
    fn what_cannot_be_in_memory_is_cut_without_a_panic() {
        let uses = [u64::MAX, u64::MAX, 5].map(|elements| Use { layer: 0, number: 0, elements });
        let bucket = Bucket { uses: uses.to_vec(), sharded: false };
        assert!(shard(&bucket, 0, 3).len() + shard(&bucket, 2, 3).len() > 0);
        assert_eq!(bucket.bytes(), u64::MAX);
    }

    #[test]
    fn a_small_bucket_is_one_replicas() {
        let bucket =
            Bucket { uses: vec![Use { layer: 0, number: 0, elements: 200 }], sharded: false };
        assert_eq!(shard(&bucket, 0, 2), []);
        assert_eq!(shard(&bucket, 1, 2).len(), 1);
    }
}
