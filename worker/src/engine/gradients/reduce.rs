//! The end of a sum along the tree: adds the sum over all microbatches to the gradients so far.

use crate::engine::error::{EngineError, PeerDataError};
use crate::engine::gradients::buffer::{GradientRange, GradientSlice};
use crate::engine::gradients::gradient_store::GradientStore;
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::shards::param_use;
use crate::engine::params::stage_params::ParamUse;
use pipeline::replicas::{shard, Bucket};
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};
use tensor::transfer::to_device;
use tensor::TensorError;

/// The slices of each gradient.
type GradientSlices = BTreeMap<ParamUse, Vec<GradientSlice>>;

/// A bucket whose sums arrive.
struct ReceivedBucket<'a> {
    bucket: &'a Bucket,
    /// The replica whose slices arrive; `None` if all replicas' do.
    replica: Option<u16>,
    device: Device,
}

impl GradientStore {
    /// Adds the sums over all microbatches. `buckets` has the slices of each replica's shard of
    /// each bucket. Of a sharded bucket it has only this replica's. It is empty if all microbatches
    /// were computed here.
    ///
    /// # Errors
    /// The sums do not fit the stage, or are incomplete.
    pub(crate) fn reduce(
        &mut self,
        store: &ParamStore,
        buckets: Vec<Vec<Vec<Tensor>>>,
        device: Device,
    ) -> Result<(), EngineError> {
        if buckets.is_empty() {
            return self.add_roots();
        }
        if !self.trees.are_empty() {
            return Err(wrong("its own sums have not been sent"));
        }
        for (used, slices) in self.received_slices(store, buckets, device)? {
            let param = store.params().of_use(used);
            let range = match store.shards().shard_range_of_use(used) {
                None => GradientRange { param, size: param.size(), first: 0 },
                Some(shard) => {
                    GradientRange { param, size: vec![shard.end - shard.start], first: shard.start }
                }
            };
            self.buffer(used).add_slices(&range, &slices)?;
        }
        Ok(())
    }

    fn add_roots(&mut self) -> Result<(), EngineError> {
        let buffers = &mut self.buffers;
        self.trees.drain_roots(|used, sum| buffers[used.layer][used.number].add_owned(sum))
    }

    fn received_slices(
        &self,
        store: &ParamStore,
        buckets: Vec<Vec<Vec<Tensor>>>,
        device: Device,
    ) -> Result<GradientSlices, EngineError> {
        let own = self.trees.buckets()?;
        if own.len() != buckets.len() {
            return Err(wrong(format!("expected {} buckets, got {}", own.len(), buckets.len())));
        }
        let mut slices = GradientSlices::new();
        for (number, (bucket, shards)) in own.iter().zip(buckets).enumerate() {
            let replica = store.shards().replica(number);
            ReceivedBucket { bucket, replica, device }.read(shards, &mut slices)?;
        }
        Ok(slices)
    }
}

impl ReceivedBucket<'_> {
    /// Checks the slices, which other workers sent, and adds them to those of their parameters.
    fn read(&self, shards: Vec<Vec<Tensor>>, all: &mut GradientSlices) -> Result<(), EngineError> {
        let replicas =
            u16::try_from(shards.len()).map_err(|_| wrong(format!("{} replicas", shards.len())))?;
        // By use: whether its gradient is present. All its slices must agree.
        let mut present: BTreeMap<usize, bool> = BTreeMap::new();
        for (replica, tensors) in (0..replicas).zip(shards) {
            let arrives = self.replica.is_none_or(|own| own == replica);
            let slices = if arrives { shard(self.bucket, replica, replicas) } else { Vec::new() };
            if slices.len() != tensors.len() {
                let (expected, got) = (slices.len(), tensors.len());
                return Err(wrong(format!("expected {expected} slices, got {got}")));
            }
            for (slice, tensor) in slices.into_iter().zip(tensors) {
                let (first, end) = (slice.elements.start as i64, slice.elements.end as i64);
                let (kind, size) = (tensor.f_kind().map_err(TensorError::from)?, tensor.size());
                let is_present = size != [0];
                if kind != Kind::Float || (is_present && size != [end - first]) {
                    let count = end - first;
                    return Err(wrong(format!("expected {count} numbers, got {kind:?} {size:?}")));
                }
                if *present.entry(slice.place).or_insert(is_present) != is_present {
                    return Err(wrong("a gradient came in part"));
                }
                if is_present {
                    let tensor = to_device(&tensor, self.device)?;
                    let used = param_use(&self.bucket.uses[slice.place]);
                    all.entry(used).or_default().push(GradientSlice { first, tensor });
                }
            }
        }
        Ok(())
    }
}

fn wrong(problem: impl Into<String>) -> EngineError {
    PeerDataError::Reduced { problem: problem.into() }.into()
}
