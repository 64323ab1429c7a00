//! The plain reference: the whole model in one place, without stages, sessions or a network.

use crate::calls::{self, Answered, Call, MICROBATCH_LOSS};
use crate::math::{self, Draw, Fake, Param};
use crate::Setting;
use layerspec::{Layer, LayerGraph, ValueId};
use pipeline::task::{LossTask, Update};
use pipeline::{OptimizerSpec, StateName};
use std::collections::BTreeMap;

/// The model uncut.
pub struct Oracle<'g> {
    graph: &'g LayerGraph,
    microbatches: u32,
    max_norm: Option<f64>,
    /// Whether gradients are summed along a tree.
    tree: bool,
    params: BTreeMap<String, Param>,
    optimizer: Option<OptimizerSpec>,
    /// The values and optimizer's states of the last checkpoint.
    kept: BTreeMap<String, (Fake, Fake)>,
    /// The variables of each (step, microbatch) that went forward.
    saved: BTreeMap<(u64, u32), Vec<Fake>>,
}

impl<'g> Oracle<'g> {
    pub fn new(graph: &'g LayerGraph, setting: &Setting) -> Self {
        let Setting { microbatches, max_norm, tree, .. } = *setting;
        let (params, kept, saved) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Oracle { graph, microbatches, max_norm, tree, params, optimizer: None, kept, saved }
    }

    /// The answer that the fleet must give.
    pub fn call(&mut self, call: Call) -> Answered {
        let mut answered = Answered::default();
        match call {
            Call::Distribute => {
                let names = self.graph.layers().iter().flat_map(|l| self.weights(l));
                self.params =
                    names.map(|(name, _)| (name.clone(), Param::new(calls::SEED, &name))).collect();
                self.optimizer = None;
                self.saved.clear();
            }
            Call::Optimizer(lr) => {
                self.optimizer = Some(calls::optimizer(lr));
                self.params.values_mut().for_each(|p| p.state = 0);
            }
            Call::State => answered.state = self.state(),
            Call::Checkpoint => {
                answered.state = self.state();
                let begun = self.params.iter().filter(|(_, p)| p.state != 0);
                answered.state.extend(begun.map(|(name, p)| {
                    let name = format!("{name}.state");
                    (StateName::of_optimizer(&name, None).to_string(), p.state)
                }));
                self.kept = self
                    .params
                    .iter()
                    .map(|(name, p)| (name.clone(), (p.value, p.state)))
                    .collect();
            }
            Call::Resume(lr) => {
                self.optimizer = Some(calls::optimizer(lr));
                for (name, param) in &mut self.params {
                    (param.value, param.state) = self.kept[name];
                }
            }
            Call::Load(salt) => {
                self.params
                    .iter_mut()
                    .for_each(|(name, p)| p.value = calls::loaded(name, p.value, salt));
            }
            Call::Train(step) | Call::Gather(step) => {
                for microbatch in 0..self.microbatches {
                    let values = self.forward(step, microbatch, true);
                    self.answer_outputs(
                        &mut answered,
                        microbatch,
                        &values,
                        calls::wants_outputs(step),
                    );
                    let (loss, grad) = self.loss(step, microbatch, &values);
                    answered.losses.push((microbatch, loss.to_bits()));
                    self.backward(
                        step,
                        microbatch,
                        &values,
                        BTreeMap::from([(self.graph.outputs()[0], vec![grad])]),
                    );
                }
                self.end_round();
                if let Call::Train(_) = call {
                    answered.grad_norm = self.optim_step(step);
                }
            }
            Call::Eval(step) => {
                for microbatch in 0..self.microbatches {
                    let values = self.forward(step, microbatch, false);
                    self.answer_outputs(&mut answered, microbatch, &values, true);
                    let (loss, _) = self.loss(step, microbatch, &values);
                    answered.losses.push((microbatch, loss.to_bits()));
                }
            }
            Call::Forward(step) => {
                for microbatch in 0..self.microbatches {
                    let values = self.forward(step, microbatch, true);
                    self.answer_outputs(&mut answered, microbatch, &values, true);
                    self.saved.insert((step, microbatch), values);
                }
            }
            Call::Backward(step) => {
                for microbatch in 0..self.microbatches {
                    let values =
                        self.saved.remove(&(step, microbatch)).expect("a forward pass before");
                    let outputs = self.graph.outputs().iter().enumerate();
                    let grads = outputs
                        .map(|(index, v)| (*v, calls::grads(step, microbatch, index)))
                        .collect();
                    self.backward(step, microbatch, &values, grads);
                }
                self.end_round();
            }
            Call::OptimStep(step) => answered.grad_norm = self.optim_step(step),
            Call::Digest => {}
            Call::Measure => {
                answered.measured = calls::probes(self.graph).iter().map(math::times).collect()
            }
            Call::Discard(step) => self.saved.retain(|(saved, _), _| *saved != step),
        }
        answered
    }

    pub fn state(&self) -> BTreeMap<String, Fake> {
        self.params.iter().map(|(name, p)| (name.clone(), p.value)).collect()
    }

    fn weights(&self, layer: &Layer) -> Vec<(String, bool)> {
        math::weights(layer, layer.share.map(|owner| self.graph.layer(owner)))
    }

    fn weight_values(&self, layer: &Layer) -> Vec<Fake> {
        self.weights(layer).iter().map(|(name, _)| self.params[name].value).collect()
    }

    fn forward(&self, step: u64, microbatch: u32, train: bool) -> Vec<Fake> {
        let inputs =
            (0..self.graph.inputs().len()).map(|index| calls::input(step, microbatch, index));
        let mut values: Vec<Fake> = inputs.collect();
        for layer in self.graph.layers() {
            let inputs: Vec<Fake> = layer.inputs.iter().map(|v| values[v.index()]).collect();
            let draw = train.then_some(Draw { seed: calls::SEED, step, microbatch });
            values.extend(math::forward(layer, &self.weight_values(layer), &inputs, draw));
        }
        values
    }

    fn loss(&self, step: u64, microbatch: u32, values: &[Fake]) -> (f32, Fake) {
        let weight = calls::loss_weights(self.microbatches)[microbatch as usize];
        let target = calls::target(step, microbatch);
        let output = values[self.graph.outputs()[0].index()];
        let spec = MICROBATCH_LOSS;
        math::loss(output, &LossTask { output: 0, spec, weight, target, likeliest: false })
    }

    fn answer_outputs(
        &self,
        answered: &mut Answered,
        microbatch: u32,
        values: &[Fake],
        wanted: bool,
    ) {
        let mut outputs = self.graph.outputs().to_vec();
        outputs.sort();
        let outputs = outputs.into_iter().map(|v| (microbatch, v, values[v.index()]));
        answered.outputs.extend(outputs.filter(|_| wanted));
    }

    /// `grads` are the gradients of the outputs, which come first in every sum. The uses follow,
    /// the last use first.
    fn backward(
        &mut self,
        step: u64,
        microbatch: u32,
        values: &[Fake],
        mut grads: BTreeMap<ValueId, Vec<Fake>>,
    ) {
        let graph = self.graph;
        grads.retain(|value, _| graph.requires_grad(*value));
        for layer in graph.layers().iter().rev() {
            let of = |value: &ValueId| {
                grads.get(value).and_then(|terms| math::sum(terms.iter().copied()))
            };
            let of_outputs: Vec<Option<Fake>> = layer.outputs.iter().map(of).collect();
            if of_outputs.iter().all(Option::is_none) {
                for (name, _) in
                    self.weights(layer).into_iter().filter(|(_, trained)| *trained && self.tree)
                {
                    let param = self.params.get_mut(&name).expect("known");
                    param.add_leaf(layer.id, None, microbatch, self.microbatches);
                }
                continue;
            }
            let inputs: Vec<Fake> = layer.inputs.iter().map(|v| values[v.index()]).collect();
            let draw = Draw { seed: calls::SEED, step, microbatch };
            let own = self.weight_values(layer);
            let (of_inputs, of_weights) = math::backward(layer, &own, &inputs, draw, &of_outputs);
            for ((name, trained), grad) in self.weights(layer).into_iter().zip(of_weights) {
                if trained {
                    let param = self.params.get_mut(&name).expect("known");
                    match self.tree {
                        true => param.add_leaf(layer.id, Some(grad), microbatch, self.microbatches),
                        false => param.add_grad(layer.id, grad),
                    }
                }
            }
            for (value, grad) in layer.inputs.iter().zip(of_inputs).rev() {
                if graph.requires_grad(*value) {
                    grads.entry(*value).or_default().push(grad);
                }
            }
        }
    }

    fn end_round(&mut self) {
        for param in self.params.values_mut() {
            for user in param.trees.keys().copied().collect::<Vec<_>>() {
                param.end_tree(user);
            }
        }
    }

    fn optim_step(&mut self, step: u64) -> Option<u64> {
        let optimizer = self.optimizer.expect("an optimizer before a step");
        let update = calls::update(step, self.max_norm);
        // In the order of layers, as PyTorch would with the parameters of the whole model.
        let own = |layer: &'g Layer| {
            let own = math::own_weights(layer, layer.share.map(|owner| self.graph.layer(owner)));
            own.into_iter().map(|(number, name)| {
                (layer.kind.params()[number as usize].elements().expect("small"), name)
            })
        };
        let names = self.graph.layers().iter().flat_map(own);
        let squares: f64 =
            names.map(|(elements, name)| whole(elements, self.params[&name].square())).sum();
        let norm = squares.sqrt() * update.scale;
        let clip = self.max_norm.map_or(1.0, |most| (most / (norm + 1e-6)).min(1.0));
        let step = Update { lr: update.lr, scale: update.scale, clip, skip: false };
        self.params.values_mut().for_each(|p| p.step(&optimizer, step));
        self.max_norm.map(|_| norm.to_bits())
    }
}

/// The squared norm of a whole gradient whose blocks have `square` each.
fn whole(elements: u64, square: f64) -> f64 {
    let mut sums = vec![square; elements.div_ceil(256) as usize];
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| pair.iter().sum()).collect();
    }
    sums[0]
}
