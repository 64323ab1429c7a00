//! The gradients of one microbatch, on their way into the trees, and of the trees' sums out to other replicas.

use super::branch::{GradientTrees, TreeTarget};
use super::error::EngineError;
use super::gradient::GradientBuffer;
use super::state::copy;
use pipeline::replicas::{shard, Node};
use pipeline::task::HandedOut;
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// The leaves that one pass adds.
pub(super) struct LeafWriter<'a> {
    trees: &'a mut GradientTrees,
    microbatch: u32,
    target: TreeTarget<'a>,
    /// The bucket and the place in it whose leaf is put next.
    next: (usize, usize),
    /// The layer at work, and its gradients by its own order of parameters.
    current: Option<(usize, Vec<GradientBuffer>)>,
}

impl<'a> LeafWriter<'a> {
    pub(super) fn new(trees: &'a mut GradientTrees, microbatch: u32, target: TreeTarget<'a>) -> Self {
        LeafWriter { trees, microbatch, target, next: (0, 0), current: None }
    }

    /// The gradients of a layer, to be added to. It is done with those after it.
    pub(super) fn layer_gradients(&mut self, layer: usize) -> Result<&mut [GradientBuffer], EngineError> {
        if self.current.as_ref().is_none_or(|(other, _)| *other != layer) {
            self.finish_layers_from(layer + 1)?;
            let pool = &mut self.trees.pool;
            let mut gradients: Vec<GradientBuffer> = Vec::new();
            for used in self.trees.uses.iter().flatten().filter(|used| used.layer == layer) {
                if gradients.len() <= used.number {
                    gradients.resize_with(used.number + 1, GradientBuffer::default);
                }
                gradients[used.number] = used.leaf(pool);
            }
            self.current = Some((layer, gradients));
        }
        Ok(self.current.as_mut().map_or(&mut [], |(_, gradients)| gradients))
    }

    /// The pass is done with this layer and all after it: their gradients are put into the trees, and buckets that are
    /// complete handed out.
    pub(super) fn finish_layers_from(&mut self, layer: usize) -> Result<(), EngineError> {
        while let Some(bucket) = self.trees.uses.get(self.next.0) {
            let Some(used) = bucket.get(self.next.1) else {
                self.complete(self.next.0)?;
                self.next = (self.next.0 + 1, 0);
                continue;
            };
            if used.layer < layer {
                break;
            }
            let layer_gradients = self.current.as_mut().filter(|(current, _)| *current == used.layer);
            let leaf = layer_gradients.and_then(|(_, gradients)| gradients.get_mut(used.number)).map(std::mem::take);
            let GradientTrees { uses, pool, .. } = &mut *self.trees;
            uses[self.next.0][self.next.1].add_leaf(self.microbatch, leaf.unwrap_or_default(), pool)?;
            self.next.1 += 1;
        }
        if self.target.branch.hand_out.is_some() && self.next.0 == self.trees.uses.len() {
            self.trees.finish_round();
        }
        Ok(())
    }

    /// All of a bucket is in its trees.
    fn complete(&mut self, bucket: usize) -> Result<(), EngineError> {
        let Some(replicas) = self.target.branch.hand_out else { return Ok(()) };
        let sums = self.trees.drain_nodes(bucket)?;
        let of_replica = |replica: u16| {
            let slices = shard(&self.trees.buckets[bucket], replica, replicas);
            // What waits here for its neighbours does so without the others' part.
            let stays = self.trees.shards_gradients && self.trees.shard_id.is_some_and(|id| id.replica == replica);
            let of_node = |(node, uses): (&Node, &Vec<Option<Tensor>>)| {
                let slices = slices.iter().map(|slice| {
                    let (begin, end) = (slice.elements.start as i64, slice.elements.end as i64);
                    match uses.get(slice.place) {
                        Some(Some(flat)) if stays => copy(&flat.f_narrow(0, begin, end - begin)?),
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
        Ok((self.target.emit)(HandedOut::Sums { stage, bucket, shards })?)
    }
}
