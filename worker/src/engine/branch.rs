//! The gradients of parameters, summed along the tree over a batch's microbatches.
//!
//! Each use of a parameter by a layer has a tree of its own; all of a stage's hold the same microbatches. A pass puts one leaf
//! into each, in the order of the buckets in which they travel, as soon as it is done with the layer.

use super::error::EngineError;
use super::gradient::Gradient;
use super::layout::plain;
use super::leaves::Leaves;
use super::params::Params;
use super::spare::Spare;
use super::stage::StageModel;
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::replicas::{Bucket, Node, ShardId, Tree};
use pipeline::task::{Branch, HandedOut};
use std::collections::{BTreeMap, BTreeSet};
use tch::{Kind, Tensor};
use tensor::{memory, TensorError};

/// A backward pass whose gradients of parameters are summed along a tree.
pub struct Along<'a> {
    /// The stage, for what is handed out.
    pub stage: StageId,
    /// Where they go.
    pub branch: Branch,
    /// Takes what is handed out on the way.
    pub hand_out: &'a mut HandOut<'a>,
}

/// Takes what an engine hands out. Its tensors may share memory: do not write to them.
pub type HandOut<'a> = dyn FnMut(HandedOut<Tensor>) -> Result<(), TensorError> + 'a;

/// The trees of a stage.
#[derive(Debug, Default)]
pub(super) struct Trees {
    pub(super) buckets: Vec<Bucket>,
    /// By bucket and place in it.
    pub(super) uses: Vec<Vec<Summed>>,
    /// Whether the buckets hold whatever the stage has gradients for, each once.
    whole: bool,
    pub(super) round: Option<Round>,
    pub(super) spare: Spare,
    /// Which part of what leaves stays here, where replicas share it out: then no memory is kept from round to round.
    pub(super) shard_id: Option<ShardId>,
    /// Whether gradients leave with each microbatch: then none is kept from one to the next.
    pub(super) scatters: bool,
}

/// The gradient of one parameter as one layer uses it. Microbatches from which no gradient came count as nothing.
#[derive(Debug)]
pub(super) struct Summed {
    pub(super) layer: usize,
    /// Its place among the layer's parameters.
    pub(super) number: usize,
    name: String,
    shape: Vec<i64>,
    /// Whether leaves come with memory of their own, or new memory each: then what is freed is not kept for them.
    brings_memory: bool,
    tree: Tree<Option<Tensor>>,
}

/// Whose gradients the trees hold.
#[derive(Debug)]
pub(super) struct Round {
    batch: u64,
    microbatches: u32,
    summed: BTreeSet<u32>,
}

impl Trees {
    pub(super) fn new(stage: &StageModel, params: &Params) -> Self {
        let StageModel { buckets, shard_id, scatters, .. } = stage;
        let summed = |used: &pipeline::replicas::Use| {
            let binding = params.bindings.get(used.layer)?.get(used.number)?;
            let param = params.all.get(binding.index).filter(|param| param.trained)?;
            let fits = param.tensor.numel() as u64 == used.elements;
            let (layer, number, shape) = (used.layer, used.number, param.tensor.size());
            let (name, tree) = (param.name.clone(), Tree::new(0));
            fits.then_some(Summed { layer, number, name, shape, brings_memory: *scatters, tree })
        };
        let uses: Option<Vec<Vec<Summed>>> =
            buckets.iter().map(|bucket| bucket.uses.iter().map(summed).collect()).collect();
        let trained = params.all.iter().filter(|param| param.trained).flat_map(|param| param.uses.iter().copied());
        let uses = uses.unwrap_or_default();
        let held: Vec<(usize, usize)> = uses.iter().flatten().map(|used| (used.layer, used.number)).collect();
        let once = held.iter().copied().collect::<BTreeSet<_>>().len() == held.len();
        let descending = held.windows(2).all(|pair| pair[0].0 >= pair[1].0);
        let whole = once && descending && trained.collect::<BTreeSet<_>>() == held.into_iter().collect();
        let (buckets, shard_id, scatters) = (buckets.clone(), *shard_id, *scatters);
        Trees { buckets, uses, whole, round: None, spare: Spare::default(), shard_id, scatters }
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
    pub(super) fn end(&mut self) {
        self.round = None;
        if self.shard_id.is_some() {
            self.spare = Spare::default();
        }
    }

    /// Whether no sums are here.
    pub(super) fn are_empty(&self) -> bool {
        self.round.is_none()
    }

    /// The buckets, where they hold whatever the stage has gradients for.
    pub(super) fn buckets(&self) -> Result<&[Bucket], EngineError> {
        self.whole.then_some(&self.buckets[..]).ok_or(EngineError::Buckets)
    }

    /// A pass through this microbatch.
    pub(super) fn pass<'a>(&'a mut self, key: MicrobatchKey, along: Along<'a>) -> Result<Leaves<'a>, EngineError> {
        if !self.whole {
            return Err(EngineError::Buckets);
        }
        let microbatches = along.branch.microbatches;
        if self.round.is_none() {
            self.uses.iter_mut().flatten().for_each(|used| used.tree = Tree::new(microbatches));
        }
        let round = self.round.get_or_insert_with(|| Round { batch: key.batch, microbatches, summed: BTreeSet::new() });
        let fits = round.batch == key.batch && round.microbatches == microbatches && key.index < microbatches;
        if !fits || !round.summed.insert(key.index) {
            return Err(EngineError::OtherTree { key, microbatches });
        }
        Ok(Leaves::new(self, key.index, along))
    }

    /// Takes out the sum over all microbatches of each use that has one: `take` gets it by layer and number, and gives back
    /// memory that is free then.
    pub(super) fn take_roots(
        &mut self,
        mut take: impl FnMut((usize, usize), Tensor) -> Result<Option<Tensor>, TensorError>,
    ) -> Result<(), EngineError> {
        let (summed, microbatches) =
            self.round.take().map_or((0, 0), |round| (round.summed.len(), round.microbatches as usize));
        for used in self.uses.iter_mut().flatten() {
            let tree = std::mem::replace(&mut used.tree, Tree::new(0));
            let Some(root) = tree.into_root() else { return Err(EngineError::Unfinished { summed, microbatches }) };
            if let Some(root) = root {
                let freed = take((used.layer, used.number), root)?;
                freed.into_iter().for_each(|memory| used.free(memory, &mut self.spare));
            }
        }
        Ok(())
    }

    /// How many tensors are kept for leaves to come.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.spare.len()
    }

    /// For each node that is here what it came to, use by use, flat.
    pub(super) fn take_sums(&mut self, bucket: usize) -> Result<BTreeMap<Node, Vec<Option<Tensor>>>, EngineError> {
        let mut sums: BTreeMap<Node, Vec<Option<Tensor>>> = BTreeMap::new();
        for used in &mut self.uses[bucket] {
            for (node, sum) in std::mem::replace(&mut used.tree, Tree::new(0)).into_sums() {
                let flat = sum.map(|sum| used.flat(sum, &mut self.spare)).transpose()?;
                sums.entry(node).or_default().push(flat);
            }
        }
        Ok(sums)
    }
}

impl Summed {
    /// An empty leaf.
    pub(super) fn leaf(&self, spare: &mut Spare) -> Gradient {
        Gradient::of_one(if self.brings_memory { None } else { spare.take(&self.shape) })
    }

    /// Adds a leaf to the tree.
    pub(super) fn put(&mut self, microbatch: u32, leaf: Gradient, spare: &mut Spare) -> Result<(), TensorError> {
        self.brings_memory |= leaf.brings_memory();
        let (leaf, unused) = leaf.into_parts();
        unused.into_iter().for_each(|memory| self.free(memory, spare));
        let mut tree = std::mem::replace(&mut self.tree, Tree::new(0));
        let result = tree.put(Node::leaf(microbatch), leaf, |left, right| match (left, right) {
            (Some(left), Some(right)) => self.added(left, right, spare).map(Some),
            (left, right) => Ok(left.or(right)),
        });
        self.tree = tree;
        result
    }

    /// The sum, in the memory of the left one where nobody else refers to that.
    fn added(&self, mut left: Tensor, right: Tensor, spare: &mut Spare) -> Result<Tensor, TensorError> {
        if !memory::is_alone(&left) {
            return Ok(left.f_add(&right)?);
        }
        let _same = left.f_add_(&right)?;
        self.free(right, spare);
        Ok(left)
    }

    /// A sum as it travels. Its memory is used again once nobody refers to it any more.
    fn flat(&self, sum: Tensor, spare: &mut Spare) -> Result<Tensor, EngineError> {
        let kind = sum.f_kind().map_err(TensorError::from)?;
        if kind != Kind::Float {
            return Err(EngineError::GradientType { param: self.name.clone(), found: format!("{kind:?}") });
        }
        let sum = plain(sum)?;
        let flat = sum.f_view([-1]).map_err(TensorError::from)?;
        self.free(sum, spare);
        Ok(flat)
    }

    /// Keeps memory for leaves to come, if these need some.
    fn free(&self, memory: Tensor, spare: &mut Spare) {
        if !self.brings_memory {
            spare.put(memory);
        }
    }
}
