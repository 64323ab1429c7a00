//! The end of a sum along the tree: what all microbatches came to is added to the gradients so far.

use super::error::EngineError;
use super::Engine;
use pipeline::replicas::{shard, Bucket};
use std::collections::BTreeMap;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// The parts of each gradient, by layer and number, each with the element at which it begins.
type GradientSlices = BTreeMap<(usize, usize), Vec<(i64, Tensor)>>;

impl Engine {
    /// Adds the sums over all microbatches of a batch to the gradients so far, and has the running statistics of norms take what
    /// these saw. As in PyTorch, a parameter to which no gradient came has none.
    ///
    /// `buckets` holds for every bucket and replica the slices of that replica's shard, of a sharded bucket those of this one
    /// alone, and `statistics` what each other
    /// replica handed out; both are empty where this engine has had all microbatches.
    pub fn reduce(
        &mut self,
        batch: u64,
        buckets: Vec<Vec<Vec<Tensor>>>,
        statistics: Vec<Vec<Tensor>>,
    ) -> Result<(), EngineError> {
        tch::no_grad(|| {
            match buckets.is_empty() {
                true => self.add_roots()?,
                false => self.add_buckets(buckets)?,
            }
            self.apply_statistics(batch, statistics)
        })
    }

    fn add_roots(&mut self) -> Result<(), EngineError> {
        let gradients = &mut self.gradients;
        self.trees.drain_roots(|(layer, number), sum| gradients[layer][number].add_owned(sum))
    }

    fn add_buckets(&mut self, buckets: Vec<Vec<Vec<Tensor>>>) -> Result<(), EngineError> {
        if !self.trees.are_empty() {
            return Err(wrong("its own have not been handed out"));
        }
        for ((layer, number), parts) in self.parts(buckets)? {
            let param = &self.params.all[self.params.bindings[layer][number].index].tensor;
            let (size, begin) = match self.shards.shard_range_of_use((layer, number)) {
                None => (param.size(), 0),
                Some(part) => (vec![part.end - part.start], part.start),
            };
            self.gradients[layer][number].add_parts((&size, param), begin, &parts)?;
        }
        Ok(())
    }

    /// What came, checked: it is from other workers.
    fn parts(&self, buckets: Vec<Vec<Vec<Tensor>>>) -> Result<GradientSlices, EngineError> {
        let own = self.trees.buckets()?;
        if own.len() != buckets.len() {
            return Err(wrong(format!("expected {} buckets, got {}", own.len(), buckets.len())));
        }
        let mut parts = GradientSlices::new();
        for (number, (bucket, shards)) in own.iter().zip(buckets).enumerate() {
            self.parts_of((number, bucket), shards, &mut parts)?;
        }
        Ok(parts)
    }

    fn parts_of(
        &self,
        (number, bucket): (usize, &Bucket),
        shards: Vec<Vec<Tensor>>,
        parts: &mut GradientSlices,
    ) -> Result<(), EngineError> {
        let replicas = u16::try_from(shards.len()).map_err(|_| wrong(format!("{} replicas", shards.len())))?;
        // Whether a gradient came, for each use of which some part has been seen.
        let mut has_come: BTreeMap<usize, bool> = BTreeMap::new();
        for (replica, tensors) in (0..replicas).zip(shards) {
            let is_here = self.shards.replica(number).is_none_or(|me| me == replica);
            let slices = if is_here { shard(bucket, replica, replicas) } else { Vec::new() };
            if slices.len() != tensors.len() {
                return Err(wrong(format!("expected {} slices, got {}", slices.len(), tensors.len())));
            }
            for (slice, tensor) in slices.into_iter().zip(tensors) {
                let (begin, end) = (slice.elements.start as i64, slice.elements.end as i64);
                let (kind, size) = (tensor.f_kind().map_err(TensorError::from)?, tensor.size());
                let came = size != [0];
                if kind != Kind::Float || (came && size != [end - begin]) {
                    return Err(wrong(format!("expected {} numbers, got {kind:?} {size:?}", end - begin)));
                }
                if *has_come.entry(slice.place).or_insert(came) != came {
                    return Err(wrong("a gradient came in part"));
                }
                if came {
                    let tensor = tensor.f_to_device(self.stage.device).map_err(TensorError::from)?;
                    let used = &bucket.uses[slice.place];
                    parts.entry((used.layer, used.number)).or_default().push((begin, tensor));
                }
            }
        }
        Ok(())
    }
}

fn wrong(problem: impl Into<String>) -> EngineError {
    EngineError::ReducedMismatch { problem: problem.into() }
}
