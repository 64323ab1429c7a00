//! The weights of a stage, tied copies included, and the tensors between stages that share weights.

use crate::math::{self, Fake, Param};
use layerspec::{Layer, LayerId};
use pipeline::ids::StageId;
use pipeline::norm::{blocks, summed, Square, BLOCK};
use pipeline::optimizer::OptimizerSpec;
use pipeline::plan::StageSpec;
use pipeline::replicas::{shard, Bucket, Node, ShardId, Use};
use pipeline::task::Update;
use pipeline::StateName;
use std::collections::{BTreeMap, BTreeSet};

/// Stands for the gradient of a use that no gradient reached.
pub const NOTHING: Fake = 0;

#[derive(Default)]
pub struct Params {
    spec: Option<StageSpec>,
    all: BTreeMap<String, Param>,
    tied_copies: BTreeSet<String>,
}

/// Tensors by the stage at the other end.
pub type Tied = Vec<(StageId, Vec<Fake>)>;

impl Params {
    pub fn new(spec: &StageSpec, seed: u64) -> Self {
        let mut params = Params { spec: Some(spec.clone()), ..Params::default() };
        for layer in &spec.layers {
            for (name, _) in params.weights(layer) {
                let here = spec
                    .layers
                    .iter()
                    .any(|l| name.rsplit_once('.').is_some_and(|(n, _)| n == l.name));
                if !here {
                    params.tied_copies.insert(name.clone());
                }
                params.all.insert(name.clone(), Param::new(seed, &name));
            }
        }
        params
    }

    fn spec(&self) -> &StageSpec {
        self.spec.as_ref().expect("a stage that was built")
    }

    /// A layer's weights: the name of each, and whether it is trained.
    pub fn weights(&self, layer: &Layer) -> Vec<(String, bool)> {
        math::weights(layer, owner(self.spec(), layer))
    }

    /// The values of a layer's weights.
    pub fn of(&self, layer: &Layer) -> Vec<Fake> {
        self.weights(layer).iter().map(|(name, _)| self.all[name].value).collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.all.keys().cloned().collect()
    }

    pub fn owned(&self) -> Vec<(String, Fake)> {
        let owned = self.all.iter().filter(|(name, _)| !self.tied_copies.contains(*name));
        owned.map(|(name, p)| (name.clone(), p.value)).collect()
    }

    /// A digest of all values.
    pub fn digest(&self) -> [u8; 32] {
        let hash = self
            .all
            .iter()
            .fold(math::Hash::of("digest"), |hash, (name, p)| hash.text(name).add(p.value));
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&hash.end().to_le_bytes());
        digest
    }

    /// Whether two replicas have the same values and optimizer state.
    pub fn has_equal_state(&self, other: &Params) -> bool {
        let state = |(name, p): (&String, &Param)| (name.clone(), p.value, p.state);
        self.all.iter().map(state).eq(other.all.iter().map(state))
    }

    pub fn load(&mut self, name: &str, value: Fake) {
        self.all.entry(name.to_string()).and_modify(|p| p.value = value);
    }

    /// The optimizer's states, if it has begun; of sharded parameters, this replica's shard.
    /// `parts` leaves out states that every replica has. Each with the number of its elements, if
    /// it is a shard.
    pub fn states(
        &self,
        buckets: &[Bucket],
        share: Option<ShardId>,
        parts: bool,
    ) -> Vec<(String, Option<u64>, Fake)> {
        let begun = self.all.iter().filter(|(_, p)| p.state != 0);
        let named = |(name, p): (&String, &Param)| {
            let part = self.part_of(name, buckets, share);
            let left_out =
                part.as_ref().is_some_and(|part| part.is_empty()) || (part.is_none() && parts);
            let elements = part.as_ref().map(|part| part.end - part.start);
            let name = format!("{name}.state");
            let name = StateName::of_optimizer(&name, part.map(|part| part.start)).to_string();
            (!left_out).then_some((name, elements, p.state))
        };
        begun.filter_map(named).collect()
    }

    /// The local shard of a weight.
    fn part_of(
        &self,
        name: &str,
        buckets: &[Bucket],
        share: Option<ShardId>,
    ) -> Option<std::ops::Range<u64>> {
        for (index, layer) in self.spec().layers.iter().enumerate() {
            for (number, own) in math::own_weights(layer, owner(self.spec(), layer)) {
                if own == name {
                    let elements = layer.kind.params()[number as usize].elements().expect("small");
                    return part(
                        buckets,
                        share,
                        &Use { layer: index, number: number as usize, elements },
                    );
                }
            }
        }
        None
    }

    pub fn load_state(
        &mut self,
        name: &str,
        state: Fake,
        buckets: &[Bucket],
        share: Option<ShardId>,
    ) {
        let elsewhere = self.part_of(name, buckets, share).is_some_and(|part| part.is_empty());
        if !elsewhere && !self.tied_copies.contains(name) {
            self.all.entry(name.to_string()).and_modify(|p| p.state = state);
        }
    }

    pub fn forget_state(&mut self) {
        self.all.values_mut().for_each(|p| p.state = 0);
    }

    pub fn forget_grads(&mut self) {
        for param in self.all.values_mut() {
            param.grads.clear();
            param.trees.clear();
        }
    }

    pub fn add_grad(&mut self, name: &str, user: LayerId, grad: Fake) {
        self.all.get_mut(name).expect("known").add_grad(user, grad);
    }

    /// The same along a tree.
    pub fn add_leaf(
        &mut self,
        name: &str,
        user: LayerId,
        grad: Option<Fake>,
        microbatch: u32,
        microbatches: u32,
    ) {
        self.all.get_mut(name).expect("known").add_leaf(user, grad, microbatch, microbatches);
    }

    /// The sums of a bucket, for each replica its slices of each node. A slice of a gradient is the
    /// gradient itself.
    pub fn hand_out(&mut self, bucket: &Bucket, replicas: u16) -> Vec<Vec<(Node, Vec<Fake>)>> {
        let trees: Vec<Vec<(Node, Option<Fake>)>> =
            bucket.uses.iter().map(|used| self.take_tree(used)).collect();
        let nodes: Vec<Node> = trees.iter().take(1).flatten().map(|(node, _)| *node).collect();
        let of = |node: Node, place: usize| {
            let found = trees[place].iter().find(|(other, _)| *other == node);
            found.expect("the same microbatches").1.unwrap_or(NOTHING)
        };
        let shard = |replica| {
            let slices = shard(bucket, replica, replicas);
            nodes
                .iter()
                .map(|node| (*node, slices.iter().map(|slice| of(*node, slice.place)).collect()))
                .collect()
        };
        (0..replicas).map(shard).collect()
    }

    /// The sums of every use.
    pub fn take_trees(&mut self, buckets: &[Bucket]) -> Vec<Vec<(Node, Option<Fake>)>> {
        buckets.iter().flat_map(|bucket| &bucket.uses).map(|used| self.take_tree(used)).collect()
    }

    /// Adds the sums over all replicas, for every use.
    pub fn add_sums(&mut self, buckets: &[Bucket], sums: &[Option<Fake>]) {
        for (used, sum) in buckets.iter().flat_map(|bucket| &bucket.uses).zip(sums) {
            let (name, user) = self.named(used);
            sum.iter().for_each(|grad| self.add_grad(&name, user, *grad));
        }
    }

    fn take_tree(&mut self, used: &Use) -> Vec<(Node, Option<Fake>)> {
        let (name, user) = self.named(used);
        let tree = self.all.get_mut(&name).expect("known").trees.remove(&user);
        tree.map(|tree| tree.into_sums().collect()).unwrap_or_default()
    }

    pub fn named(&self, used: &Use) -> (String, LayerId) {
        let layer = self.spec().layers[used.layer].clone();
        let (name, trained) = self.weights(&layer)[used.number].clone();
        assert!(trained, "{name} is not trained");
        (name, layer.id)
    }

    /// Whether every sum along a tree is one of all microbatches, or was handed out.
    pub fn are_whole(&self, handed_out: bool) -> bool {
        let mut trees = self.all.values().flat_map(|p| p.trees.values());
        trees.all(|tree| !handed_out && tree.clone().into_root().is_some())
    }

    /// Ends a round's sums with those of all replicas, or with its own if there is one replica.
    pub fn reduce(
        &mut self,
        buckets: &[Bucket],
        share: Option<ShardId>,
        reduced: Vec<Vec<Vec<Fake>>>,
    ) {
        if reduced.is_empty() {
            for used in buckets.iter().flat_map(|b| &b.uses) {
                let (name, user) = self.named(used);
                self.all.get_mut(&name).expect("known").end_tree(user);
            }
            return;
        }
        assert_eq!(reduced.len(), buckets.len());
        for (bucket, shards) in buckets.iter().zip(reduced) {
            let mut whole: BTreeMap<usize, Vec<Fake>> = BTreeMap::new();
            let replicas = shards.len() as u16;
            for (replica, slices) in (0..).zip(shards) {
                let here = !bucket.sharded || share.is_some_and(|share| share.replica == replica);
                let places = if here { shard(bucket, replica, replicas) } else { Vec::new() };
                assert_eq!(places.len(), slices.len());
                for (slice, grad) in places.into_iter().zip(slices) {
                    whole.entry(slice.place).or_default().push(grad);
                }
            }
            for (place, slices) in whole {
                assert!(slices.iter().all(|slice| *slice == slices[0]), "parts of different sums");
                if slices[0] != NOTHING {
                    let (name, user) = self.named(&bucket.uses[place]);
                    self.add_grad(&name, user, slices[0]);
                }
            }
        }
    }

    pub fn step(&mut self, optimizer: &OptimizerSpec, update: Update) {
        let owned = self.all.iter_mut().filter(|(name, _)| !self.tied_copies.contains(*name));
        owned.for_each(|(_, p)| p.step(optimizer, update));
    }

    /// The squares of the gradients of each own weight, or of its local shard. A block has the
    /// square of the whole.
    pub fn squares(
        &self,
        layers: &[Layer],
        buckets: &[Bucket],
        share: Option<ShardId>,
    ) -> Vec<Square> {
        let mut squares = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            for (number, name) in math::own_weights(layer, owner(self.spec(), layer)) {
                let elements = layer.kind.params()[number as usize].elements().expect("small");
                let used = Use { layer: index, number: number as usize, elements };
                let part = match part(buckets, share, &used) {
                    None => 0..elements,
                    Some(part) => part,
                };
                let count = part.end.div_ceil(BLOCK) - part.start / BLOCK;
                let sums = vec![self.all[&name].square(); count as usize];
                let nodes = summed(blocks(elements), (part.start / BLOCK) as u32, &sums);
                let blocks = blocks(elements);
                squares.extend(nodes.into_iter().map(|(node, sum)| Square {
                    layer: layer.id,
                    number,
                    blocks,
                    node,
                    sum,
                }));
            }
        }
        squares
    }

    /// The slices of a bucket that a replica has updated.
    pub fn values(&self, bucket: &Bucket, share: ShardId) -> Vec<Fake> {
        let slices = shard(bucket, share.replica, share.replicas);
        slices
            .iter()
            .map(|slice| self.all[&self.named(&bucket.uses[slice.place]).0].value)
            .collect()
    }

    /// Loads the slices that the others have updated.
    pub fn all_gather(
        &mut self,
        buckets: &[Bucket],
        share: Option<ShardId>,
        updated: Vec<Vec<Vec<Fake>>>,
    ) {
        let Some(ShardId { replica, replicas }) = share else {
            return assert!(updated.iter().flatten().all(Vec::is_empty));
        };
        for (bucket, shards) in buckets.iter().zip(updated) {
            let own = shard(bucket, replica, replicas);
            for (other, slices) in (0..).zip(shards) {
                let sent = bucket.sharded && other != replica;
                let places = if sent { shard(bucket, other, replicas) } else { Vec::new() };
                assert_eq!(places.len(), slices.len());
                for (slice, value) in places.into_iter().zip(slices) {
                    let (name, _) = self.named(&bucket.uses[slice.place]);
                    let param = self.all.get_mut(&name).expect("known");
                    let here = own.iter().any(|own| own.place == slice.place);
                    assert!(
                        !here || param.value == value,
                        "parts of {name} that do not belong together"
                    );
                    param.value = value;
                }
            }
        }
    }

    pub fn tied_grads(&self, spec: &StageSpec) -> Tied {
        let mut tied: BTreeMap<StageId, Vec<Fake>> = BTreeMap::new();
        for tied_copies in &spec.tied_copies {
            let users: Vec<&Layer> = users(spec, &tied_copies.users);
            let list = tied.entry(tied_copies.from).or_default();
            for (name, user) in uses(&tied_copies.owner, &users) {
                list.push(self.all[&name].grads.get(&user).copied().unwrap_or(NOTHING));
            }
        }
        tied.into_iter().collect()
    }

    pub fn add_tied(&mut self, spec: &StageSpec, tied: Tied) {
        assert!(tied.is_sorted_by(|a, b| a.0 > b.0), "stages in the wrong order");
        for (stage, grads) in tied {
            let mut grads = grads.into_iter();
            for tied_owners in &spec.tied_owners {
                let Some((_, users)) = tied_owners.to.iter().find(|(to, _)| *to == stage) else {
                    continue;
                };
                let owner = spec
                    .layers
                    .iter()
                    .find(|l| l.id == tied_owners.owner)
                    .expect("a layer of the stage");
                for (name, user) in uses(owner, &users.iter().collect::<Vec<_>>()) {
                    let grad = grads.next().expect("a gradient of every use");
                    if grad != NOTHING {
                        let own = self.all.get_mut(&name).expect("known").grads.insert(user, grad);
                        assert_eq!(own, None, "a gradient added twice");
                    }
                }
            }
            assert_eq!(grads.next(), None, "too many gradients from {stage}");
        }
    }

    pub fn tied_values(&self, spec: &StageSpec) -> Tied {
        let mut tied: BTreeMap<std::cmp::Reverse<StageId>, Vec<Fake>> = BTreeMap::new();
        for tied_owners in &spec.tied_owners {
            let owner = spec
                .layers
                .iter()
                .find(|l| l.id == tied_owners.owner)
                .expect("a layer of the stage");
            for (stage, users) in &tied_owners.to {
                let names = shared(owner, &users.iter().collect::<Vec<_>>());
                tied.entry(std::cmp::Reverse(*stage))
                    .or_default()
                    .extend(names.iter().map(|n| self.all[n].value));
            }
        }
        tied.into_iter().map(|(stage, values)| (stage.0, values)).collect()
    }

    pub fn take_tied(&mut self, spec: &StageSpec, tied: Tied) {
        assert!(tied.is_sorted_by(|a, b| a.0 < b.0), "stages in the wrong order");
        let mut left = self.tied_copies.clone();
        for (stage, values) in tied {
            let mut values = values.into_iter();
            for tied_copies in spec.tied_copies.iter().filter(|b| b.from == stage) {
                for name in shared(&tied_copies.owner, &users(spec, &tied_copies.users)) {
                    let param = self.all.get_mut(&name).expect("known");
                    param.value = values.next().expect("a value of every weight");
                    param.grads.clear();
                    left.remove(&name);
                }
            }
            assert_eq!(values.next(), None, "too many values from {stage}");
        }
        assert!(left.is_empty(), "{left:?} stay as they were");
    }
}

/// The local shard of a weight.
fn part(buckets: &[Bucket], share: Option<ShardId>, used: &Use) -> Option<std::ops::Range<u64>> {
    let bucket = buckets.iter().find(|bucket| bucket.sharded && bucket.uses.contains(used))?;
    let ShardId { replica, replicas } = share?;
    let slices = shard(bucket, replica, replicas);
    let mine = slices.into_iter().find(|slice| bucket.uses[slice.place] == *used);
    Some(mine.map_or(0..0, |slice| slice.elements))
}

fn users<'a>(spec: &'a StageSpec, ids: &[LayerId]) -> Vec<&'a Layer> {
    ids.iter()
        .map(|id| spec.layers.iter().find(|l| l.id == *id).expect("a layer of the stage"))
        .collect()
}

/// The names of the owner's weights that these layers share, in its order.
fn shared(owner: &Layer, users: &[&Layer]) -> Vec<String> {
    let used: BTreeSet<&str> =
        users.iter().flat_map(|user| user.kind.tied_params(&owner.kind)).collect();
    let names = owner.kind.params().into_iter().map(|p| p.name).filter(|name| used.contains(name));
    names.map(|name| format!("{}.{name}", owner.name)).collect()
}

/// Each of these weights with each layer that uses it, descending.
fn uses(owner: &Layer, users: &[&Layer]) -> Vec<(String, LayerId)> {
    let mut users = users.to_vec();
    users.sort_by_key(|user| std::cmp::Reverse(user.id));
    let of = |name: String| {
        let users = users.iter().filter(|user| {
            let tied = user.kind.tied_params(&owner.kind);
            tied.iter().any(|tied| format!("{}.{tied}", owner.name) == name)
        });
        users.map(|user| (name.clone(), user.id)).collect::<Vec<_>>()
    };
    shared(owner, &users).into_iter().flat_map(of).collect()
}

/// A layer of this stage, or one whose parameters it copies.
fn owner<'a>(spec: &'a StageSpec, layer: &Layer) -> Option<&'a Layer> {
    let id = layer.share?;
    let found =
        spec.layers.iter().chain(spec.tied_copies.iter().map(|b| &b.owner)).find(|l| l.id == id);
    Some(found.expect("a layer of the stage, or one that it borrows"))
}
