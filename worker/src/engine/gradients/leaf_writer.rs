//! Writes the gradients of one microbatch into the trees, and emits the trees' sums for other
//! replicas.

use crate::engine::error::EngineError;
use crate::engine::gradients::buffer::GradientBuffer;
use crate::engine::gradients::trees::{GradientTrees, TreeTarget};
use crate::engine::layout::deep_copy;
use pipeline::ids::MicrobatchKey;
use pipeline::replicas::{shard, Node};
use pipeline::task::EarlyOutput;
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// The leaves that one pass adds.
pub(crate) struct LeafWriter<'a> {
    trees: &'a mut GradientTrees,
    microbatch: u32,
    target: TreeTarget<'a>,
    /// The leaf to write next.
    next: LeafPlace,
    /// The layer at work.
    current: Option<LayerLeaves>,
}

/// The place of a leaf: a bucket, and a use of a parameter in it.
struct LeafPlace {
    bucket: usize,
    place: usize,
}

/// The gradients of one layer, by its own order of parameters.
struct LayerLeaves {
    layer: usize,
    gradients: Vec<GradientBuffer>,
}

impl<'a> LeafWriter<'a> {
    /// Begins a pass over a microbatch.
    ///
    /// # Errors
    /// The microbatch is no leaf of the tree.
    pub(super) fn begin(
        trees: &'a mut GradientTrees,
        key: MicrobatchKey,
        target: TreeTarget<'a>,
    ) -> Result<Self, EngineError> {
        trees.begin_microbatch(key, target.branch.microbatches)?;
        let next = LeafPlace { bucket: 0, place: 0 };
        Ok(LeafWriter { trees, microbatch: key.index, target, next, current: None })
    }

    /// The gradients of a layer, to add to. Layers after it are complete.
    pub(crate) fn layer_gradients(
        &mut self,
        layer: usize,
    ) -> Result<&mut [GradientBuffer], EngineError> {
        if self.current.as_ref().is_none_or(|current| current.layer != layer) {
            self.finish_layers_from(layer + 1)?;
            let pool = &mut self.trees.pool;
            let mut gradients: Vec<GradientBuffer> = Vec::new();
            for tree in self.trees.uses.iter().flatten().filter(|tree| tree.used.layer == layer) {
                let number = tree.used.number;
                if gradients.len() <= number {
                    gradients.resize_with(number + 1, GradientBuffer::default);
                }
                gradients[number] = tree.leaf(pool);
            }
            self.current = Some(LayerLeaves { layer, gradients });
        }
        Ok(self.current.as_mut().map_or(&mut [], |current| &mut current.gradients))
    }

    /// Ends the pass for this layer and all after it: puts their gradients into the trees, and
    /// emits the buckets that are complete.
    pub(crate) fn finish_layers_from(&mut self, layer: usize) -> Result<(), EngineError> {
        while let Some(bucket) = self.trees.uses.get(self.next.bucket) {
            let Some(tree) = bucket.get(self.next.place) else {
                self.complete(self.next.bucket)?;
                self.next = LeafPlace { bucket: self.next.bucket + 1, place: 0 };
                continue;
            };
            let used = tree.used;
            if used.layer < layer {
                break;
            }
            let current = self.current.as_mut().filter(|current| current.layer == used.layer);
            let leaf = current
                .and_then(|current| current.gradients.get_mut(used.number))
                .map(std::mem::take)
                .unwrap_or_default();
            let GradientTrees { uses, pool, .. } = &mut *self.trees;
            let tree = &mut uses[self.next.bucket][self.next.place];
            tree.add_leaf(self.microbatch, leaf, pool)?;
            self.next.place += 1;
        }
        if self.target.branch.emit_to_replicas.is_some()
            && self.next.bucket == self.trees.uses.len()
        {
            self.trees.finish_round();
        }
        Ok(())
    }

    /// Emits a complete bucket.
    fn complete(&mut self, bucket: usize) -> Result<(), EngineError> {
        let Some(replicas) = self.target.branch.emit_to_replicas else { return Ok(()) };
        let sums = self.trees.drain_nodes(bucket)?;
        let of_replica = |replica: u16| {
            let slices = shard(&self.trees.buckets[bucket], replica, replicas);
            // A slice that waits for its neighbour must not keep the memory of the other slices.
            let stays = self.trees.shards_gradients
                && self.trees.shard_id.is_some_and(|id| id.replica == replica);
            let of_node = |(node, uses): (&Node, &Vec<Option<Tensor>>)| {
                let slices = slices.iter().map(|slice| {
                    let (begin, end) = (slice.elements.start as i64, slice.elements.end as i64);
                    match uses.get(slice.place) {
                        Some(Some(flat)) if stays => {
                            deep_copy(&flat.f_narrow(0, begin, end - begin)?)
                        }
                        Some(Some(flat)) => Ok(flat.f_narrow(0, begin, end - begin)?),
                        _ => Ok(Tensor::f_zeros([0], (Kind::Float, Device::Cpu))?),
                    }
                });
                Ok((*node, slices.collect::<Result<_, TensorError>>()?))
            };
            sums.iter().map(of_node).collect::<Result<_, TensorError>>()
        };
        let shards = (0..replicas).map(of_replica).collect::<Result<_, _>>()?;
        drop(sums);
        let (stage, bucket) = (self.target.stage, bucket as u32);
        Ok((self.target.emit)(EarlyOutput::Sums { stage, bucket, shards })?)
    }
}
