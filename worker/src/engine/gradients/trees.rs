//! The gradients of parameters, summed along the tree over a batch's microbatches.
//!
//! Each use of a parameter by a layer has a tree of its own. All trees of a stage have the same
//! microbatches. A pass adds one leaf to each tree as soon as it has completed the layer, in the
//! order of the buckets.

use crate::engine::config::StageConfig;
use crate::engine::error::{EngineError, PlanError, SequenceError};
use crate::engine::gradients::buffer::GradientBuffer;
use crate::engine::gradients::tensor_pool::TensorPool;
use crate::engine::layout::canonical_layout;
use crate::engine::params::shards::param_use;
use crate::engine::params::stage_params::{ParamUse, Params};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::replicas::{Bucket, Node, ShardId, Tree};
use pipeline::task::{EarlyOutput, TreeLeaf};
use std::collections::{BTreeMap, BTreeSet};
use tch::{Kind, Tensor};
use tensor::{memory, TensorError};

/// A backward pass whose gradients of parameters are summed along a tree.
pub struct TreeTarget<'a> {
    /// The stage, for the emitted tensors.
    pub stage: StageId,
    /// The destination of the gradients.
    pub branch: TreeLeaf,
    /// Takes the tensors that are emitted on the way.
    pub emit: &'a mut EmitFn<'a>,
}

impl TreeTarget<'_> {
    /// The same target for a shorter time.
    pub(crate) fn reborrow(&mut self) -> TreeTarget<'_> {
        TreeTarget { stage: self.stage, branch: self.branch, emit: &mut *self.emit }
    }
}

/// Takes the tensors that an engine emits. They may share memory: do not write to them.
pub type EmitFn<'a> = dyn FnMut(EarlyOutput<Tensor>) -> Result<(), TensorError> + 'a;

/// The trees of a stage.
#[derive(Debug, Default)]
pub(crate) struct GradientTrees {
    pub(crate) buckets: Vec<Bucket>,
    /// By bucket and place in it.
    pub(crate) uses: Vec<Vec<ParamUseTree>>,
    /// Whether the buckets hold each gradient of the stage once.
    covers_all: bool,
    pub(crate) round: Option<TreeRound>,
    pub(crate) pool: TensorPool,
    /// This replica's shard, if gradients are sharded. No memory is then kept from round to round.
    pub(crate) shard_id: Option<ShardId>,
    /// Whether gradients leave with each microbatch and are not kept for the next.
    pub(crate) shards_gradients: bool,
}

/// The gradient of one parameter for one layer that uses it. Microbatches without a gradient add
/// nothing.
#[derive(Debug)]
pub(crate) struct ParamUseTree {
    pub(crate) used: ParamUse,
    name: String,
    shape: Vec<i64>,
    /// Whether leaves have their own memory, so that freed memory is not kept for them.
    adopts_memory: bool,
    tree: Tree<Option<Tensor>>,
}

/// The parameters whose gradients the trees hold.
#[derive(Debug)]
pub(crate) struct TreeRound {
    batch: u64,
    microbatches: u32,
    summed: BTreeSet<u32>,
}

impl GradientTrees {
    pub(crate) fn new(stage: &StageConfig, params: &Params) -> Self {
        let StageConfig { buckets, shard_id, shards_gradients, .. } = stage;
        let tree_of = |used: &pipeline::replicas::Use| {
            let binding = params.bindings.get(used.layer)?.get(used.number)?;
            let param = params.all.get(binding.index).filter(|param| param.trained)?;
            let fits = param.tensor.numel() as u64 == used.elements;
            fits.then_some(ParamUseTree {
                used: param_use(used),
                name: param.name.clone(),
                shape: param.tensor.size(),
                adopts_memory: *shards_gradients,
                tree: Tree::new(0),
            })
        };
        let uses: Option<Vec<Vec<ParamUseTree>>> =
            buckets.iter().map(|bucket| bucket.uses.iter().map(tree_of).collect()).collect();
        let uses = uses.unwrap_or_default();
        let held: Vec<ParamUse> = uses.iter().flatten().map(|tree| tree.used).collect();
        let distinct: BTreeSet<ParamUse> = held.iter().copied().collect();
        let once = distinct.len() == held.len();
        let descending = held.windows(2).all(|pair| pair[0].layer >= pair[1].layer);
        let trained = params.all.iter().filter(|param| param.trained);
        let trained: BTreeSet<ParamUse> = trained.flat_map(|param| param.uses.clone()).collect();
        let covers_all = once && descending && trained == distinct;
        let (buckets, shard_id, shards_gradients) = (buckets.clone(), *shard_id, *shards_gradients);
        GradientTrees {
            buckets,
            uses,
            covers_all,
            round: None,
            pool: TensorPool::default(),
            shard_id,
            shards_gradients,
        }
    }

    /// Drops all sums.
    pub(crate) fn clear(&mut self) {
        self.round = None;
        self.uses.iter_mut().flatten().for_each(|used| used.tree = Tree::new(0));
    }

    /// Drops the sums of a batch.
    pub(crate) fn discard(&mut self, batch: u64) {
        if self.round.as_ref().is_some_and(|round| round.batch == batch) {
            self.clear();
        }
    }

    /// Ends the round: everything has been emitted.
    pub(crate) fn finish_round(&mut self) {
        self.round = None;
        if self.shard_id.is_some() {
            self.pool = TensorPool::default();
        }
    }

    /// Whether there are no sums.
    pub(crate) fn are_empty(&self) -> bool {
        self.round.is_none()
    }

    /// The buckets, if they hold each gradient of the stage.
    pub(crate) fn buckets(&self) -> Result<&[Bucket], EngineError> {
        self.covers_all.then_some(&self.buckets[..]).ok_or(PlanError::IncompleteBuckets.into())
    }

    /// Begins a pass over this microbatch.
    ///
    /// # Errors
    /// The buckets are incomplete, or the microbatch is no leaf of the tree or has been summed.
    pub(super) fn begin_microbatch(
        &mut self,
        key: MicrobatchKey,
        microbatches: u32,
    ) -> Result<(), EngineError> {
        if !self.covers_all {
            return Err(PlanError::IncompleteBuckets.into());
        }
        if self.round.is_none() {
            self.uses.iter_mut().flatten().for_each(|used| used.tree = Tree::new(microbatches));
        }
        let round = self.round.get_or_insert_with(|| TreeRound {
            batch: key.batch,
            microbatches,
            summed: BTreeSet::new(),
        });
        let fits = round.batch == key.batch
            && round.microbatches == microbatches
            && key.index < microbatches;
        if !fits || !round.summed.insert(key.index) {
            return Err(SequenceError::NotALeaf { key, microbatches }.into());
        }
        Ok(())
    }

    /// Removes the sum over all microbatches of each use that has one. `take` receives it with
    /// layer and number, and returns the memory that becomes free.
    pub(crate) fn drain_roots(
        &mut self,
        mut take: impl FnMut(ParamUse, Tensor) -> Result<Option<Tensor>, TensorError>,
    ) -> Result<(), EngineError> {
        let (summed, microbatches) = self
            .round
            .take()
            .map_or((0, 0), |round| (round.summed.len(), round.microbatches as usize));
        for used in self.uses.iter_mut().flatten() {
            let tree = std::mem::replace(&mut used.tree, Tree::new(0));
            let Some(root) = tree.into_root() else {
                return Err(SequenceError::IncompleteSum { summed, microbatches }.into());
            };
            if let Some(root) = root {
                let freed = take(used.used, root)?;
                freed.into_iter().for_each(|memory| used.free(memory, &mut self.pool));
            }
        }
        Ok(())
    }

    /// The number of tensors kept for later leaves.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.pool.len()
    }

    /// Removes the sum of each node, use by use, flat.
    pub(crate) fn drain_nodes(
        &mut self,
        bucket: usize,
    ) -> Result<BTreeMap<Node, Vec<Option<Tensor>>>, EngineError> {
        let mut sums: BTreeMap<Node, Vec<Option<Tensor>>> = BTreeMap::new();
        for used in &mut self.uses[bucket] {
            for (node, sum) in std::mem::replace(&mut used.tree, Tree::new(0)).into_sums() {
                let flat = sum.map(|sum| used.flat(sum, &mut self.pool)).transpose()?;
                sums.entry(node).or_default().push(flat);
            }
        }
        Ok(sums)
    }
}

impl ParamUseTree {
    /// An empty leaf.
    pub(crate) fn leaf(&self, pool: &mut TensorPool) -> GradientBuffer {
        GradientBuffer::single_microbatch(if self.adopts_memory {
            None
        } else {
            pool.take(&self.shape)
        })
    }

    /// Adds a leaf to the tree.
    pub(crate) fn add_leaf(
        &mut self,
        microbatch: u32,
        leaf: GradientBuffer,
        pool: &mut TensorPool,
    ) -> Result<(), TensorError> {
        self.adopts_memory |= leaf.adopts_memory();
        let (leaf, unused) = leaf.into_parts();
        unused.into_iter().for_each(|memory| self.free(memory, pool));
        let mut tree = std::mem::replace(&mut self.tree, Tree::new(0));
        let result = tree.put(Node::leaf(microbatch), leaf, |left, right| match (left, right) {
            (Some(left), Some(right)) => self.added(left, right, pool).map(Some),
            (left, right) => Ok(left.or(right)),
        });
        self.tree = tree;
        result
    }

    /// The sum, in the memory of the left term if that has no other reference.
    fn added(
        &self,
        mut left: Tensor,
        right: Tensor,
        pool: &mut TensorPool,
    ) -> Result<Tensor, TensorError> {
        if !memory::is_uniquely_owned(&left) {
            return Ok(left.f_add(&right)?);
        }
        let _same = left.f_add_(&right)?;
        self.free(right, pool);
        Ok(left)
    }

    /// A flat sum for sending. Its memory is used again once it has no reference.
    fn flat(&self, sum: Tensor, pool: &mut TensorPool) -> Result<Tensor, EngineError> {
        let kind = sum.f_kind().map_err(TensorError::from)?;
        if kind != Kind::Float {
            let (param, found) = (self.name.clone(), format!("{kind:?}"));
            return Err(PlanError::GradientType { param, found }.into());
        }
        let sum = canonical_layout(sum)?;
        let flat = sum.f_view([-1]).map_err(TensorError::from)?;
        self.free(sum, pool);
        Ok(flat)
    }

    /// Keeps memory for later leaves, if these need some.
    fn free(&self, memory: Tensor, pool: &mut TensorPool) {
        if !self.adopts_memory {
            pool.put(memory);
        }
    }
}
