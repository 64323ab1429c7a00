//! The gradients of parameters, summed along the tree over a batch's microbatches.
//!
//! Each use of a parameter by a layer has a tree of its own; all of a stage's hold the same microbatches. A pass puts one leaf
//! into each, in the order of the buckets in which they travel, as soon as it is done with the layer.

use super::error::EngineError;
use super::gradient::GradientBuffer;
use super::layout::canonical_layout;
use super::leaves::LeafWriter;
use super::params::Params;
use super::spare::TensorPool;
use super::stage::StageConfig;
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::replicas::{Bucket, Node, ShardId, Tree};
use pipeline::task::{Branch, HandedOut};
use std::collections::{BTreeMap, BTreeSet};
use tch::{Kind, Tensor};
use tensor::{memory, TensorError};

/// A backward pass whose gradients of parameters are summed along a tree.
pub struct TreeTarget<'a> {
    /// The stage, for what is handed out.
    pub stage: StageId,
    /// Their destination.
    pub branch: Branch,
    /// Takes what is handed out on the way.
    pub emit: &'a mut EmitFn<'a>,
}

/// Takes what an engine hands out. Its tensors may share memory: do not write to them.
pub type EmitFn<'a> = dyn FnMut(HandedOut<Tensor>) -> Result<(), TensorError> + 'a;

/// The trees of a stage.
#[derive(Debug, Default)]
pub(super) struct GradientTrees {
    pub(super) buckets: Vec<Bucket>,
    /// By bucket and place in it.
    pub(super) uses: Vec<Vec<ParamUseTree>>,
    /// Whether the buckets hold whatever the stage has gradients for, each once.
    covers_all: bool,
    pub(super) round: Option<TreeRound>,
    pub(super) pool: TensorPool,
    /// Which part of what leaves stays here, where replicas share it out: then no memory is kept from round to round.
    pub(super) shard_id: Option<ShardId>,
    /// Whether gradients leave with each microbatch: then none is kept from one to the next.
    pub(super) shards_gradients: bool,
}

/// The gradient of one parameter as one layer uses it. Microbatches from which no gradient came count as nothing.
#[derive(Debug)]
pub(super) struct ParamUseTree {
    pub(super) layer: usize,
    /// Its place among the layer's parameters.
    pub(super) number: usize,
    name: String,
    shape: Vec<i64>,
    /// Whether leaves come with memory of their own, or new memory each: then what is freed is not kept for them.
    adopts_memory: bool,
    tree: Tree<Option<Tensor>>,
}

/// The parameters whose gradients the trees hold.
#[derive(Debug)]
pub(super) struct TreeRound {
    batch: u64,
    microbatches: u32,
    summed: BTreeSet<u32>,
}

impl GradientTrees {
    pub(super) fn new(stage: &StageConfig, params: &Params) -> Self {
        let StageConfig { buckets, shard_id, shards_gradients, .. } = stage;
        let summed = |used: &pipeline::replicas::Use| {
            let binding = params.bindings.get(used.layer)?.get(used.number)?;
            let param = params.all.get(binding.index).filter(|param| param.trained)?;
            let fits = param.tensor.numel() as u64 == used.elements;
            let (layer, number, shape) = (used.layer, used.number, param.tensor.size());
            let (name, tree) = (param.name.clone(), Tree::new(0));
            fits.then_some(ParamUseTree { layer, number, name, shape, adopts_memory: *shards_gradients, tree })
        };
        let uses: Option<Vec<Vec<ParamUseTree>>> =
            buckets.iter().map(|bucket| bucket.uses.iter().map(summed).collect()).collect();
        let trained = params.all.iter().filter(|param| param.trained).flat_map(|param| param.uses.iter().copied());
        let uses = uses.unwrap_or_default();
        let held: Vec<(usize, usize)> = uses.iter().flatten().map(|used| (used.layer, used.number)).collect();
        let once = held.iter().copied().collect::<BTreeSet<_>>().len() == held.len();
        let descending = held.windows(2).all(|pair| pair[0].0 >= pair[1].0);
        let covers_all = once && descending && trained.collect::<BTreeSet<_>>() == held.into_iter().collect();
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

    /// Forgets all sums.
    pub(super) fn clear(&mut self) {
        self.round = None;
        self.uses.iter_mut().flatten().for_each(|used| used.tree = Tree::new(0));
    }

    /// Forgets the sums of a batch.
    pub(super) fn discard(&mut self, batch: u64) {
        if self.round.as_ref().is_some_and(|round| round.batch == batch) {
            self.clear();
        }
    }

    /// All has been handed out.
    pub(super) fn finish_round(&mut self) {
        self.round = None;
        if self.shard_id.is_some() {
            self.pool = TensorPool::default();
        }
    }

    /// Whether no sums are here.
    pub(super) fn are_empty(&self) -> bool {
        self.round.is_none()
    }

    /// The buckets, where they hold whatever the stage has gradients for.
    pub(super) fn buckets(&self) -> Result<&[Bucket], EngineError> {
        self.covers_all.then_some(&self.buckets[..]).ok_or(EngineError::IncompleteBuckets)
    }

    /// A pass through this microbatch.
    pub(super) fn begin_pass<'a>(
        &'a mut self,
        key: MicrobatchKey,
        target: TreeTarget<'a>,
    ) -> Result<LeafWriter<'a>, EngineError> {
        if !self.covers_all {
            return Err(EngineError::IncompleteBuckets);
        }
        let microbatches = target.branch.microbatches;
        if self.round.is_none() {
            self.uses.iter_mut().flatten().for_each(|used| used.tree = Tree::new(microbatches));
        }
        let round =
            self.round.get_or_insert_with(|| TreeRound { batch: key.batch, microbatches, summed: BTreeSet::new() });
        let fits = round.batch == key.batch && round.microbatches == microbatches && key.index < microbatches;
        if !fits || !round.summed.insert(key.index) {
            return Err(EngineError::NotALeaf { key, microbatches });
        }
        Ok(LeafWriter::new(self, key.index, target))
    }

    /// Takes out the sum over all microbatches of each use that has one: `take` gets it by layer and number, and gives back
    /// memory that is free then.
    pub(super) fn drain_roots(
        &mut self,
        mut take: impl FnMut((usize, usize), Tensor) -> Result<Option<Tensor>, TensorError>,
    ) -> Result<(), EngineError> {
        let (summed, microbatches) =
            self.round.take().map_or((0, 0), |round| (round.summed.len(), round.microbatches as usize));
        for used in self.uses.iter_mut().flatten() {
            let tree = std::mem::replace(&mut used.tree, Tree::new(0));
            let Some(root) = tree.into_root() else { return Err(EngineError::IncompleteSum { summed, microbatches }) };
            if let Some(root) = root {
                let freed = take((used.layer, used.number), root)?;
                freed.into_iter().for_each(|memory| used.free(memory, &mut self.pool));
            }
        }
        Ok(())
    }

    /// The number of tensors kept for later leaves.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.pool.len()
    }

    /// For each node that is here what it came to, use by use, flat.
    pub(super) fn drain_nodes(&mut self, bucket: usize) -> Result<BTreeMap<Node, Vec<Option<Tensor>>>, EngineError> {
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
    pub(super) fn leaf(&self, pool: &mut TensorPool) -> GradientBuffer {
        GradientBuffer::single_microbatch(if self.adopts_memory { None } else { pool.take(&self.shape) })
    }

    /// Adds a leaf to the tree.
    pub(super) fn add_leaf(
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

    /// The sum, in the memory of the left one where nobody else refers to that.
    fn added(&self, mut left: Tensor, right: Tensor, pool: &mut TensorPool) -> Result<Tensor, TensorError> {
        if !memory::is_uniquely_owned(&left) {
            return Ok(left.f_add(&right)?);
        }
        let _same = left.f_add_(&right)?;
        self.free(right, pool);
        Ok(left)
    }

    /// A sum as it travels. Its memory is used again once nobody refers to it any more.
    fn flat(&self, sum: Tensor, pool: &mut TensorPool) -> Result<Tensor, EngineError> {
        let kind = sum.f_kind().map_err(TensorError::from)?;
        if kind != Kind::Float {
            return Err(EngineError::GradientType { param: self.name.clone(), found: format!("{kind:?}") });
        }
        let sum = canonical_layout(sum)?;
        let flat = sum.f_view([-1]).map_err(TensorError::from)?;
        self.free(sum, pool);
        Ok(flat)
    }

    /// Keeps memory for leaves to come, if these need some.
    fn free(&self, memory: Tensor, pool: &mut TensorPool) {
        if !self.adopts_memory {
            pool.put(memory);
        }
    }
}
