//! Layers without floating point. A tensor is one number, and every result is a hash of all its
//! inputs in order, so a wrong dependency or a wrong order shows.

use layerspec::{Layer, LayerId, Role};
use pipeline::optimizer::OptimizerSpec;
use pipeline::replicas::{Node, Tree};
use pipeline::task::{LayerProbe, LayerTimes, LossTask, Update};
use std::collections::BTreeMap;

/// A tensor.
pub type Fake = u64;

/// A hash of everything given to it, in that order.
pub struct Hash(u64);

impl Hash {
    pub fn of(what: &str) -> Self {
        Hash(0).text(what)
    }

    pub fn text(self, text: &str) -> Self {
        text.bytes().fold(self, |hash, byte| hash.add(u64::from(byte)))
    }

    pub fn add(self, number: u64) -> Self {
        let mixed = (self.0 ^ number)
            .wrapping_add(0x9E37_79B9_7F4A_7C15)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9);
        Hash(mixed ^ (mixed >> 29))
    }

    pub fn all(self, numbers: &[u64]) -> Self {
        numbers.iter().fold(self.add(numbers.len() as u64), |hash, number| hash.add(*number))
    }

    pub fn end(self) -> Fake {
        self.0
    }
}

/// A sum that depends on its order, as floating-point sums do. It is a left fold whose first term
/// stands for itself, so a sum that is begun in one place may be continued in another.
pub fn sum(terms: impl IntoIterator<Item = Fake>) -> Option<Fake> {
    terms.into_iter().reduce(|sum, term| {
        sum.rotate_left(23).wrapping_mul(0x94D0_49BB_1331_11EB).wrapping_add(term)
    })
}

/// The inputs of random draws in training, besides the layer.
#[derive(Copy, Clone)]
pub struct Draw {
    pub seed: u64,
    pub step: u64,
    pub microbatch: u32,
}

/// The outputs of a layer. Every layer draws in training, as if it were a dropout.
pub fn forward(layer: &Layer, weights: &[Fake], inputs: &[Fake], draw: Option<Draw>) -> Vec<Fake> {
    let hash = |port: usize| {
        Hash::of("forward").text(&layer.name).add(port as u64).all(weights).all(inputs)
    };
    let drawn = |hash: Hash| match draw {
        Some(draw) => hash.add(draw.seed).add(draw.step).add(u64::from(draw.microbatch)),
        None => hash,
    };
    (0..layer.outputs.len()).map(|port| drawn(hash(port)).end()).collect()
}

/// The gradients of a layer's inputs and weights, given those of its outputs.
pub fn backward(
    layer: &Layer,
    weights: &[Fake],
    inputs: &[Fake],
    draw: Draw,
    grads: &[Option<Fake>],
) -> (Vec<Fake>, Vec<Fake>) {
    let hash = |what: &str, index: usize| {
        let hash = Hash::of(what).text(&layer.name).add(index as u64).all(weights).all(inputs);
        let hash = hash.add(draw.seed).add(draw.step).add(u64::from(draw.microbatch));
        grads
            .iter()
            .fold(hash, |hash, grad| hash.add(u64::from(grad.is_some())).add(grad.unwrap_or(0)))
            .end()
    };
    let of_inputs = (0..inputs.len()).map(|port| hash("input gradient", port));
    let of_weights = (0..weights.len()).map(|index| hash("weight gradient", index));
    (of_inputs.collect(), of_weights.collect())
}

/// The weighted loss of a microbatch and the gradient it starts backward with.
pub fn loss(output: Fake, task: &LossTask<Fake>) -> (f32, Fake) {
    let hash = Hash::of("loss")
        .add(output)
        .add(task.target)
        .text(&task.spec.to_string())
        .add(task.weight.to_bits());
    let grad = hash.end();
    ((grad % 1000) as f32 * task.weight as f32, grad)
}

/// A weight with its gradients and the optimizer's state for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    pub value: Fake,
    /// The sum over microbatches, for each layer that uses it.
    pub grads: BTreeMap<LayerId, Fake>,
    /// The current tree of a round that sums along trees, for each layer that uses it.
    pub trees: BTreeMap<LayerId, Tree<Option<Fake>>>,
    pub state: Fake,
}

impl Param {
    pub fn new(seed: u64, name: &str) -> Self {
        Param {
            value: Hash::of("init").add(seed).text(name).end(),
            grads: BTreeMap::new(),
            trees: BTreeMap::new(),
            state: 0,
        }
    }

    pub fn add_grad(&mut self, user: LayerId, grad: Fake) {
        let before = self.grads.get(&user).copied();
        self.grads.extend(sum(before.into_iter().chain([grad])).map(|sum| (user, sum)));
    }

    /// Adds a microbatch's gradient, if any, to the tree over `microbatches` leaves.
    pub fn add_leaf(
        &mut self,
        user: LayerId,
        grad: Option<Fake>,
        microbatch: u32,
        microbatches: u32,
    ) {
        let tree = self.trees.entry(user).or_insert_with(|| Tree::new(microbatches));
        branch(tree, Node::leaf(microbatch), grad);
    }

    /// Ends the sum along the tree, to which all microbatches were added.
    pub fn end_tree(&mut self, user: LayerId) {
        if let Some(tree) = self.trees.remove(&user) {
            if let Some(grad) = tree.into_root().expect("all microbatches") {
                self.add_grad(user, grad);
            }
        }
    }

    /// The sum over all uses, the last layer first.
    pub fn grad(&self) -> Option<Fake> {
        sum(self.grads.values().rev().copied())
    }

    pub fn square(&self) -> f64 {
        self.grad().map_or(0.0, |grad| (grad % 1_000_003) as f64 / 7.0)
    }

    /// Applies the gradient and clears it. Without a gradient nothing changes, as in PyTorch.
    pub fn step(&mut self, optimizer: &OptimizerSpec, update: Update) {
        if let Some(grad) = self.grad() {
            self.state = Hash::of("state").add(self.state).add(grad).end();
            let with = format!("{optimizer:?} {update:?}");
            self.value = Hash::of("step").add(self.value).add(self.state).text(&with).end();
        }
        self.grads.clear();
        assert!(self.trees.is_empty(), "an update before the sum over microbatches");
    }
}

/// Adds a sum to a tree.
pub fn branch(tree: &mut Tree<Option<Fake>>, node: Node, grad: Option<Fake>) {
    let add = |left: Option<Fake>, right| {
        Ok::<_, std::convert::Infallible>(sum(left.into_iter().chain(right)))
    };
    let Ok(()) = tree.put(node, grad, add);
}

/// A layer's times, the same on every worker.
pub fn times(probe: &LayerProbe) -> LayerTimes {
    LayerTimes { forward: Hash::of(&probe.layer.name).end() >> 32, ..LayerTimes::default() }
}

/// A layer's weights: the name under which each is kept, and whether it is trained. A tied weight
/// is kept under the name of its owner.
pub fn weights(layer: &Layer, owner: Option<&Layer>) -> Vec<(String, bool)> {
    let tied = owner.map_or(Vec::new(), |owner| layer.kind.tied_params(&owner.kind));
    let params = layer.kind.params().into_iter().filter(|p| p.role == Role::Parameter);
    let home = |name: &str| owner.filter(|_| tied.contains(&name)).unwrap_or(layer);
    params.map(|p| (format!("{}.{}", home(p.name).name, p.name), !home(p.name).frozen)).collect()
}

/// The weights that are a layer's own, each with its place among its parameters and its name.
pub fn own_weights(layer: &Layer, owner: Option<&Layer>) -> Vec<(u32, String)> {
    let own = |name: &String| name.rsplit_once('.').is_some_and(|(home, _)| home == layer.name);
    let names = weights(layer, owner).into_iter().map(|(name, _)| name);
    names
        .enumerate()
        .map(|(place, name)| (place as u32, name))
        .filter(|(_, name)| own(name))
        .collect()
}
