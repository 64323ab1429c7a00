//! The gradients of one microbatch, on their way into the trees, and of the trees' sums out to other replicas.

use super::branch::{Along, Trees};
use super::error::EngineError;
use super::gradient::Gradient;
use super::state::copy;
use pipeline::replicas::{shard, Node};
use pipeline::task::HandedOut;
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// The leaves that one pass adds.
pub(super) struct Leaves<'a> {
    trees: &'a mut Trees,
    microbatch: u32,
    along: Along<'a>,
    /// The bucket and the place in it whose leaf is put next.
    next: (usize, usize),
    /// The layer at work, and its gradients by its own order of parameters.
    at_work: Option<(usize, Vec<Gradient>)>,
}

impl<'a> Leaves<'a> {
    pub(super) fn new(trees: &'a mut Trees, microbatch: u32, along: Along<'a>) -> Self {
        Leaves { trees, microbatch, along, next: (0, 0), at_work: None }
    }

    /// The gradients of a layer, to be added to. It is done with those after it.
    pub(super) fn of_layer(&mut self, layer: usize) -> Result<&mut [Gradient], EngineError> {
        if self.at_work.as_ref().is_none_or(|(other, _)| *other != layer) {
            self.done_with(layer + 1)?;
            let spare = &mut self.trees.spare;
            let mut gradients: Vec<Gradient> = Vec::new();
            for used in self.trees.uses.iter().flatten().filter(|used| used.layer == layer) {
                if gradients.len() <= used.number {
                    gradients.resize_with(used.number + 1, Gradient::default);
                }
                gradients[used.number] = used.leaf(spare);
            }
            self.at_work = Some((layer, gradients));
        }
        Ok(self.at_work.as_mut().map_or(&mut [], |(_, gradients)| gradients))
    }

    /// The pass is done with this layer and all after it: their gradients are put into the trees, and buckets that are
    /// complete handed out.
    pub(super) fn done_with(&mut self, layer: usize) -> Result<(), EngineError> {
        while let Some(bucket) = self.trees.uses.get(self.next.0) {
            let Some(used) = bucket.get(self.next.1) else {
                self.complete(self.next.0)?;
                self.next = (self.next.0 + 1, 0);
                continue;
            };
            if used.layer < layer {
                break;
            }
            let of_layer = self.at_work.as_mut().filter(|(at_work, _)| *at_work == used.layer);
            let leaf = of_layer.and_then(|(_, gradients)| gradients.get_mut(used.number)).map(std::mem::take);
            let Trees { uses, spare, .. } = &mut *self.trees;
            uses[self.next.0][self.next.1].put(self.microbatch, leaf.unwrap_or_default(), spare)?;
            self.next.1 += 1;
        }
        if self.along.branch.hand_out.is_some() && self.next.0 == self.trees.uses.len() {
            self.trees.end();
        }
        Ok(())
    }

    /// All of a bucket is in its trees.
    fn complete(&mut self, bucket: usize) -> Result<(), EngineError> {
        let Some(replicas) = self.along.branch.hand_out else { return Ok(()) };
        let sums = self.trees.take_sums(bucket)?;
        let of_replica = |replica: u16| {
            let slices = shard(&self.trees.buckets[bucket], replica, replicas);
            // What waits here for its neighbours does so without the others' part.
            let stays = self.trees.scatters && self.trees.shard_id.is_some_and(|id| id.replica == replica);
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
        let (stage, bucket) = (self.along.stage, bucket as u32);
        Ok((self.along.hand_out)(HandedOut::Sums { stage, bucket, shards })?)
    }
}
