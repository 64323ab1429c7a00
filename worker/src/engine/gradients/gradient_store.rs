//! All gradients of a stage's parameters, from the first microbatch to the optimizer step.

use crate::engine::config::StageConfig;
use crate::engine::error::EngineError;
use crate::engine::gradients::buffer::GradientBuffer;
use crate::engine::gradients::gradient_target::GradientTarget;
use crate::engine::gradients::leaf_writer::LeafWriter;
use crate::engine::gradients::ordered_sum::OrderedSum;
use crate::engine::gradients::trees::{GradientTrees, TreeTarget};
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::stage_params::{ParamUse, Params};
use pipeline::ids::MicrobatchKey;
use pipeline::replicas::Bucket;
use std::collections::HashMap;
use tch::Tensor;
use tensor::TensorError;

/// The gradients of a stage's parameters.
#[derive(Debug)]
pub(crate) struct GradientStore {
    /// The sums so far: by layer, and place among its parameters.
    pub(super) buffers: Vec<Vec<GradientBuffer>>,
    /// The gradients that trees sum before they are added.
    pub(super) trees: GradientTrees,
    /// The gradients of stages that hold copies of tied parameters, by place in the stage.
    pub(super) from_tied_copies: HashMap<usize, OrderedSum>,
}

impl GradientStore {
    pub(crate) fn new(config: &StageConfig, params: &Params) -> Self {
        let buffers = params.bindings.iter().map(|own| {
            let mut layer = Vec::new();
            layer.resize_with(own.len(), GradientBuffer::default);
            layer
        });
        GradientStore {
            buffers: buffers.collect(),
            trees: GradientTrees::new(config, params),
            from_tied_copies: HashMap::new(),
        }
    }

    /// The target to which the backward pass of a microbatch adds its gradients: the sums so far,
    /// or a tree.
    ///
    /// # Errors
    /// The microbatch is no leaf of the tree.
    pub(crate) fn target<'a>(
        &'a mut self,
        key: MicrobatchKey,
        tree: Option<TreeTarget<'a>>,
    ) -> Result<GradientTarget<'a>, EngineError> {
        Ok(match tree {
            None => GradientTarget::Accumulate(&mut self.buffers),
            Some(target) => GradientTarget::Tree(LeafWriter::begin(&mut self.trees, key, target)?),
        })
    }

    /// The buckets in which the gradients travel.
    ///
    /// # Errors
    /// The buckets do not hold each gradient of the stage once.
    pub(crate) fn buckets(&self) -> Result<&[Bucket], EngineError> {
        self.trees.buckets()
    }

    pub(super) fn buffer(&mut self, used: ParamUse) -> &mut GradientBuffer {
        &mut self.buffers[used.layer][used.number]
    }

    /// The gradient of each parameter, summed over the layers that use it: by descending layer, the
    /// owner's last, whichever stages they are in. `None` for a parameter without a gradient.
    pub(crate) fn totals(&self, params: &Params) -> Result<Vec<Option<Tensor>>, TensorError> {
        let all = params.all.iter().enumerate();
        all.map(|(index, param)| {
            let mut sum = OrderedSum::default();
            if let Some(others) = self.from_tied_copies.get(&index).and_then(OrderedSum::get) {
                sum.add(others.shallow_clone())?;
            }
            for used in param.uses.iter().rev() {
                if let Some(gradient) = self.buffers[used.layer][used.number].get() {
                    sum.add(gradient.shallow_clone())?;
                }
            }
            Ok(sum.into_tensor())
        })
        .collect()
    }

    /// Clears all gradients. Their memory stays for the next ones.
    pub(crate) fn zero(&mut self) {
        self.from_tied_copies.clear();
        self.trees.clear();
        self.buffers.iter_mut().flatten().for_each(GradientBuffer::clear);
    }

    /// Clears the gradients of parameters that the stage owns. The owners of tied copies take
    /// theirs. Frees the memory of sharded gradients, because the updated parameters are about to
    /// arrive.
    pub(crate) fn zero_owned(&mut self, store: &ParamStore) {
        self.from_tied_copies.clear();
        for param in store.params().all.iter().filter(|param| param.owner_stage.is_none()) {
            for &used in &param.uses {
                match store.shards().shard_range_of_use(used) {
                    Some(_) => drop(self.buffer(used).take()),
                    None => self.buffer(used).clear(),
                }
            }
        }
    }

    /// Drops a batch's gradients that are still in a tree.
    pub(crate) fn discard(&mut self, batch: u64) {
        self.trees.discard(batch);
    }

    /// The number of tensors kept for later leaves.
    #[cfg(test)]
    pub(crate) fn pooled(&self) -> usize {
        self.trees.kept()
    }
}
