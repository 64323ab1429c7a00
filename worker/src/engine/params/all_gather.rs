//! The exchange of parameters between replicas that each update a shard of them.

use crate::engine::error::{EngineError, PeerDataError};
use crate::engine::layout::deep_copy;
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::shards::{elements, param_use, slice_of};
use crate::engine::params::stage_params::ParamUse;
use pipeline::replicas::{shard, Bucket, ShardId, Slice};
use tch::{Kind, Tensor};
use tensor::transfer::to_device;
use tensor::TensorError;

/// The place of a received slice.
struct SlicePlace {
    used: ParamUse,
    slice: Slice,
}

impl ParamStore {
    /// Emits copies of this replica's shard, bucket by bucket: its slices of each sharded bucket.
    pub(crate) fn emit_shard(
        &self,
        buckets: &[Bucket],
        mut emit: impl FnMut(u32, Vec<Tensor>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for (number, slices) in &self.shards.buckets {
            let copied = |slice: &Slice| {
                let used = param_use(&buckets[*number].uses[slice.place]);
                match self.shards.own_shards.as_ref().and_then(|shards| shards.get(&used)) {
                    Some(shard) => deep_copy(shard),
                    None => deep_copy(&slice_of(self.params.of_use(used), &elements(slice))?),
                }
            };
            let slices: Result<Vec<Tensor>, TensorError> = slices.iter().map(copied).collect();
            emit(*number as u32, slices?)?;
        }
        Ok(())
    }

    /// Takes in the shards that the other replicas have updated: for each bucket and replica the
    /// slices of its shard. This replica and buckets without shards have none.
    /// Nothing changes unless everything fits.
    pub(crate) fn all_gather(
        &mut self,
        buckets: &[Bucket],
        received: Vec<Vec<Vec<Tensor>>>,
    ) -> Result<(), EngineError> {
        let places = self.check_received(buckets, &received)?;
        match &self.shards.own_shards {
            Some(_) => self.allocate_full_params()?,
            None if places.is_empty() => return Ok(()),
            None => self.bump_version(),
        }
        let new = received.into_iter().flatten().flatten();
        for (SlicePlace { used, slice }, new) in places.into_iter().zip(new) {
            let mut here = slice_of(self.params.of_use(used), &elements(&slice))?;
            here.f_copy_(&to_device(&new, here.device())?).map_err(TensorError::from)?;
        }
        self.shards.are_gathered = true;
        Ok(())
    }

    /// Gives parameters memory, with this replica's shard of each in it.
    fn allocate_full_params(&mut self) -> Result<(), TensorError> {
        for param in &mut self.params.all {
            param.rounded.take();
        }
        for (used, part) in self.shards.own_shards.iter().flatten() {
            let param = self.params.of_use_mut(*used);
            *param = Tensor::f_empty(param.size(), (param.f_kind()?, param.device()))?;
            let range = self.shards.ranges.get(used).cloned().unwrap_or_default();
            slice_of(param, &range)?.f_copy_(part)?;
        }
        Ok(())
    }

    /// Frees the other replicas' shards of the parameters, if parameters are sharded.
    pub(crate) fn reshard(&mut self) -> Result<(), TensorError> {
        self.shards.free_full_params(&mut self.params)
    }

    /// Checks what other workers sent, and says where each slice goes.
    fn check_received(
        &self,
        buckets: &[Bucket],
        received: &[Vec<Vec<Tensor>>],
    ) -> Result<Vec<SlicePlace>, EngineError> {
        let Some(ShardId { replica, replicas }) = self.shards.id else {
            // All parameters of the stage are tied.
            let nothing = received.iter().flatten().all(Vec::is_empty);
            return if nothing { Ok(Vec::new()) } else { Err(wrong("nothing is sharded here")) };
        };
        if received.len() != buckets.len() {
            let (expected, got) = (buckets.len(), received.len());
            return Err(wrong(format!("expected {expected} buckets, got {got}")));
        }
        let mut places = Vec::new();
        for (number, shards) in received.iter().enumerate() {
            if shards.len() != usize::from(replicas) {
                return Err(wrong(format!("expected {replicas} replicas, got {}", shards.len())));
            }
            let bucket = &buckets[number];
            for (other, slices) in (0..replicas).zip(shards) {
                let sent = other != replica && self.shards.buckets.contains_key(&number);
                let expected = if sent { shard(bucket, other, replicas) } else { Vec::new() };
                if expected.len() != slices.len() {
                    let (expected, got) = (expected.len(), slices.len());
                    return Err(wrong(format!("expected {expected} slices, got {got}")));
                }
                for (slice, new) in expected.into_iter().zip(slices) {
                    let count = slice.elements.end - slice.elements.start;
                    let (kind, size) = (new.f_kind().map_err(TensorError::from)?, new.size());
                    if kind != Kind::Float || size != [count as i64] {
                        let problem = format!("expected {count} numbers, got {kind:?} {size:?}");
                        return Err(wrong(problem));
                    }
                    places.push(SlicePlace { used: param_use(&bucket.uses[slice.place]), slice });
                }
            }
        }
        Ok(places)
    }
}

fn wrong(problem: impl Into<String>) -> EngineError {
    PeerDataError::Gathered { problem: problem.into() }.into()
}
