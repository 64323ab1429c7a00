//! The slow reference that everything is compared with: one process, with the whole model as one
//! autograd graph. Each layer is libtorch's own function, and autograd itself adds up gradients.
//!
//! If this leaves the order of a sum open, it follows the engine's definition. Each layer that uses
//! a tied weight has its own leaf. These are added up once a step, the last layer's first. The rows
//! of an embedding's gradient are added to it one by one.

use crate::{Case, Training, STEPS};
use bossman::Loss;
use layerspec::layers::{Approximate, Padding};
use layerspec::{Init, Layer, LayerGraph, LayerKind, Role, ValueId};
use pipeline::message::Reduction as Along;
use pipeline::replicas::{Node, Tree};
use pipeline::OptimizerSpec;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use tch::{Device, Kind, Reduction, Tensor};
use tensor::optim::{self, Adam, AdamState, Sgd};
use tensor::random::Key;

/// Trains a case in this thread.
///
/// The thread computes alone, like that of each worker in the tests. On some processors, two
/// threads share even a small product, and it rounds differently.
pub(crate) fn train(case: &Case, microbatches: u32) -> Training {
    tensor::threads::set_count(1);
    let mut net = Net::new(case.model.graph(), case.seed, case.steps.reduction);
    let mut optimizer = Optimizer::new(case.optimizer, &net.trained());
    let losses: Vec<f32> = (0..STEPS)
        .map(|step| {
            let (x, target) = case.batch(step);
            let parts = i64::from(microbatches);
            let parts = x.tensor_split(parts, 0).into_iter().zip(target.tensor_split(parts, 0));
            let losses = (0u64..).zip(parts).map(|(microbatch, (x, target))| {
                let weight = x.size()[0] as f64 / case.steps.divisor(step);
                let prediction = net.forward(&x, step as u64 + 1, microbatch);
                let loss = loss(&case.loss, &prediction, &target) * weight;
                loss.backward();
                net.add_rows();
                let loss = loss.double_value(&[]) as f32;
                if case.steps.reduction.is_apart() {
                    net.add_leaf(microbatch as u32, microbatches);
                }
                loss
            });
            let loss = losses.reduce(|sum, loss| sum + loss).unwrap();
            net.end_trees();
            if case.steps.update(step) {
                let grads = net.gradients(case.steps.scale(step), case.steps.max_norm);
                optimizer.step(&net.trained(), &grads.iter().collect::<Vec<_>>());
                net.forget_gradients();
            }
            loss
        })
        .collect();
    Training::new(&losses, net.params.iter().map(|(name, (tensor, _))| (name.as_str(), tensor)))
}

fn loss(loss: &Loss, prediction: &Tensor, target: &Tensor) -> Tensor {
    match loss {
        Loss::MSELoss => prediction.mse_loss(target, Reduction::Mean),
        Loss::CrossEntropyLoss { label_smoothing, .. } => prediction.cross_entropy_loss::<Tensor>(
            target,
            None,
            Reduction::Mean,
            -100,
            *label_smoothing,
        ),
        other => panic!("no case has the loss {other}"),
    }
}

/// An embedding's weight, the ids that were looked up, the resulting rows, and the padding row.
type LookedUp = (String, Tensor, Tensor, Option<i64>);

/// A batch norm's running mean and variance, the share of the newest, and the mean and variance
/// that it saw.
type Seen = ([Tensor; 2], f64, [Tensor; 2]);

/// The model with its parameters and buffers by name.
struct Net<'a> {
    graph: &'a LayerGraph,
    seed: u64,
    params: BTreeMap<String, (Tensor, bool)>,
    /// Leaves on the memory of tied parameters, by the user's name for it, with the owner's name.
    tied: BTreeMap<String, (Tensor, String)>,
    /// The sums of embeddings' gradients.
    tables: BTreeMap<String, Tensor>,
    /// The gradients of microbatches summed along trees, and in `sums` those of earlier rounds, by
    /// the same names.
    trees: BTreeMap<String, Tree<Option<Tensor>>>,
    sums: BTreeMap<String, Tensor>,
    /// The statistics that batch norms saw, in a round that sums along trees.
    seen: RefCell<Vec<Seen>>,
    /// How rounds sum gradients.
    along: Along,
    /// The lookups of embeddings in this microbatch: the weight, ids, rows and the padding row.
    looked_up: RefCell<Vec<LookedUp>>,
}

impl<'a> Net<'a> {
    fn new(graph: &'a LayerGraph, seed: u64, along: Along) -> Self {
        let mut params = BTreeMap::new();
        for layer in graph.layers() {
            for spec in graph.own_params(layer.id) {
                let shape: Vec<i64> = spec.shape.iter().map(|size| size.cast_signed()).collect();
                let kind = tensor::kind_of(spec.dtype);
                let key = Key::new(seed).text("init").text(&layer.name).text(spec.name);
                let tensor = match spec.init {
                    Init::Zeros => Tensor::zeros(&shape, (kind, Device::Cpu)),
                    Init::Ones => Tensor::ones(&shape, (kind, Device::Cpu)),
                    Init::Constant { value } => Tensor::full(&shape, value, (kind, Device::Cpu)),
                    Init::Uniform { low, high } => {
                        key.stream(Device::Cpu).unwrap().uniform(&shape, kind, low, high).unwrap()
                    }
                    Init::Normal { mean, std } => {
                        key.stream(Device::Cpu).unwrap().normal(&shape, kind, mean, std).unwrap()
                    }
                    Init::File => panic!("no case has a layer with a file"),
                    Init::NormalZeroRow { mean, std, zero_row } => {
                        let tensor = key
                            .stream(Device::Cpu)
                            .unwrap()
                            .normal(&shape, kind, mean, std)
                            .unwrap();
                        let _row = tensor.select(0, zero_row.cast_signed()).zero_();
                        tensor
                    }
                };
                let trained = spec.role == Role::Parameter && !layer.frozen;
                let tensor = tensor.set_requires_grad(trained);
                params.insert(format!("{}.{}", layer.name, spec.name), (tensor, trained));
            }
        }
        let (tables, looked_up) = (BTreeMap::new(), RefCell::default());
        let mut net = Net {
            graph,
            seed,
            params,
            tied: BTreeMap::new(),
            tables,
            trees: BTreeMap::new(),
            sums: BTreeMap::new(),
            seen: RefCell::default(),
            along,
            looked_up,
        };
        net.forget_gradients();
        net
    }

    fn trained(&self) -> Vec<&Tensor> {
        self.params.values().filter(|(_, trained)| *trained).map(|(tensor, _)| tensor).collect()
    }

    /// Adds the microbatch's gradients of embeddings to their sums.
    fn add_rows(&mut self) {
        for (name, ids, rows, padding) in self.looked_up.take() {
            let weight = &self.params[&name].0;
            let sum = self.tables.entry(name).or_insert_with(|| weight.detach().zeros_like());
            let (ids, rows) = (ids.flatten(0, -1), rows.grad().reshape([-1, weight.size()[1]]));
            let _same = sum.index_add_(0, &ids, &rows);
            if let Some(row) = padding {
                let _row = sum.select(0, row).zero_();
            }
        }
    }

    /// Adds the gradients of one microbatch to the trees. The leaves hold no other gradients.
    fn add_leaf(&mut self, microbatch: u32, microbatches: u32) {
        let own = self
            .params
            .iter()
            .filter(|(_, (_, trained))| *trained)
            .map(|(name, (leaf, _))| (name, leaf));
        let tied = self.tied.iter().map(|(name, (leaf, _))| (name, leaf));
        let grads: Vec<(String, Option<Tensor>)> = own
            .chain(tied)
            .map(|(name, leaf)| {
                (name.clone(), self.tables.get(name).map_or_else(|| leaf.grad(), Tensor::copy))
            })
            .map(|(name, grad)| (name, Some(grad).filter(Tensor::defined)))
            .collect();
        for (name, grad) in grads {
            let tree = self.trees.entry(name).or_insert_with(|| Tree::new(microbatches));
            let add = |left: Option<Tensor>, right: Option<Tensor>| {
                Ok::<_, std::convert::Infallible>(match (left, right) {
                    (Some(left), Some(right)) => Some(left + right),
                    (left, right) => left.or(right),
                })
            };
            let Ok(()) = tree.put(Node::leaf(microbatch), grad, add);
        }
        self.new_leaves();
    }

    /// Ends a round: adds the sums of all its microbatches to those of earlier rounds.
    fn end_trees(&mut self) {
        for (name, tree) in std::mem::take(&mut self.trees) {
            let Some(sum) = tree.into_root().expect("all microbatches") else { continue };
            let sum = self.sums.remove(&name).map_or_else(|| sum.copy(), |before| before + &sum);
            self.sums.insert(name, sum);
        }
        for (running, share, seen) in self.seen.take() {
            for (mut running, seen) in running.into_iter().zip(seen) {
                let _same = running.g_mul_scalar_(1.0 - share).g_add_(&(seen * share));
            }
        }
    }

    /// Returns the gradient of a leaf over all microbatches so far.
    fn grad(&self, name: &String, leaf: &Tensor) -> Tensor {
        match self.along {
            Along::Tree | Along::Fast | Along::Compressed(_) | Along::Collective => {
                self.sums[name].shallow_clone()
            }
            Along::Sequential => self.tables.get(name).map_or_else(|| leaf.grad(), Tensor::copy),
        }
    }

    /// Returns the gradients of trained parameters, scaled and clipped. Those of each use are
    /// added, the last layer's first.
    fn gradients(&self, scale: f64, max_norm: Option<f64>) -> Vec<Tensor> {
        let sum = |name: &String, tensor: &Tensor| {
            let users = self.graph.layers().iter().rev().flat_map(|layer| {
                self.tied.iter().filter(move |(user, (_, owner))| {
                    owner == name && user.rsplit_once('.').unwrap().0 == layer.name
                })
            });
            let users = users.map(|(user, (leaf, _))| self.grad(user, leaf));
            let own = self.grad(name, tensor);
            users.chain([own]).reduce(|sum, grad| sum + grad).unwrap()
        };
        let trained = self.params.iter().filter(|(_, (_, trained))| *trained);
        let grads: BTreeMap<&String, Tensor> =
            trained.map(|(name, (tensor, _))| (name, sum(name, tensor))).collect();
        let clip = max_norm.map_or(1.0, |most| {
            // Sum in the order of the model.
            let names = self.graph.layers().iter().flat_map(|layer| {
                self.graph
                    .own_params(layer.id)
                    .into_iter()
                    .map(|spec| format!("{}.{}", layer.name, spec.name))
            });
            let square = |grad: &Tensor| {
                let sums = tensor::memory::squares_of_blocks(grad, 256).unwrap();
                tree_sum(&Vec::<f64>::try_from(sums.to_device(Device::Cpu)).unwrap())
            };
            let squares = names.filter_map(|name| grads.get(&name).map(square)).sum::<f64>();
            (most / (squares.sqrt() * scale.abs() + 1e-6)).min(1.0)
        });
        let factors = [scale, clip].map(|factor| Some(factor).filter(|factor| *factor != 1.0));
        let scaled =
            |grad: Tensor| factors.iter().flatten().fold(grad, |grad, factor| grad * *factor);
        grads.into_values().map(scaled).collect()
    }

    /// Drops all gradients, so that those of the next round are the first.
    fn forget_gradients(&mut self) {
        self.sums.clear();
        self.new_leaves();
    }

    /// Makes new leaves on the same memory, so that the next microbatch's gradient is the first.
    fn new_leaves(&mut self) {
        for (tensor, trained) in self.params.values_mut() {
            *tensor = tensor.detach().set_requires_grad(*trained);
        }
        for layer in self.graph.layers() {
            let Some(owner) = layer.share.map(|owner| &self.graph.layer(owner).name) else {
                continue;
            };
            for param in self.graph.shared_params(layer.id) {
                let owner = format!("{owner}.{param}");
                let (tensor, trained) = &self.params[&owner];
                let leaf = tensor.detach().set_requires_grad(*trained);
                self.tied.insert(format!("{}.{param}", layer.name), (leaf, owner));
            }
        }
        self.tables.clear();
    }

    fn forward(&self, x: &Tensor, step: u64, microbatch: u64) -> Tensor {
        let mut values: HashMap<ValueId, Tensor> =
            HashMap::from([(self.graph.inputs()[0], x.shallow_clone())]);
        for layer in self.graph.layers() {
            let inputs: Vec<&Tensor> = layer.inputs.iter().map(|value| &values[value]).collect();
            let mask = || {
                Key::new(self.seed)
                    .text("dropout")
                    .number(step)
                    .number(microbatch)
                    .text(&layer.name)
            };
            let output = self.apply(layer, &inputs, mask);
            values.insert(layer.outputs[0], output);
        }
        values[&self.graph.outputs()[0]].shallow_clone()
    }

    fn param(&self, layer: &Layer, name: &str) -> Option<&Tensor> {
        let name = format!("{}.{name}", layer.name);
        self.params
            .get(&name)
            .map(|(tensor, _)| tensor)
            .or_else(|| self.tied.get(&name).map(|(leaf, _)| leaf))
    }

    fn apply(&self, layer: &Layer, inputs: &[&Tensor], mask: impl Fn() -> Key) -> Tensor {
        let x = inputs[0];
        let (weight, bias) = (self.param(layer, "weight"), self.param(layer, "bias"));
        match &layer.kind {
            LayerKind::Linear(linear) if !linear.transposed => x.linear(weight.unwrap(), bias),
            LayerKind::ReLU(_) => x.relu(),
            LayerKind::SiLU(_) => x.silu(),
            LayerKind::Sigmoid(_) => x.sigmoid(),
            LayerKind::Tanh(_) => x.tanh(),
            LayerKind::GELU(l) if l.approximate == Approximate::Tanh => x.gelu("tanh"),
            LayerKind::GELU(_) => x.gelu("none"),
            LayerKind::Embedding(l) => {
                let padding = l.padding_row().map(u64::cast_signed);
                let rows = Tensor::embedding(
                    &weight.unwrap().detach(),
                    x,
                    padding.unwrap_or(-1),
                    false,
                    false,
                );
                let rows = rows.set_requires_grad(true);
                let name = format!("{}.weight", layer.name);
                self.looked_up.borrow_mut().push((
                    name,
                    x.shallow_clone(),
                    rows.shallow_clone(),
                    padding,
                ));
                rows
            }
            LayerKind::LayerNorm(l) => {
                x.layer_norm(sizes(&l.normalized_shape), weight, bias, l.eps, true)
            }
            LayerKind::Dropout(l) => {
                let keep = 1.0 - l.p;
                let mask = mask()
                    .stream(Device::Cpu)
                    .unwrap()
                    .bernoulli_mask(&x.size(), Kind::Float, keep)
                    .unwrap();
                x * (mask / keep)
            }
            LayerKind::Conv2d(l) => {
                let (stride, dilation, groups) =
                    (sizes(&l.stride), sizes(&l.dilation), l.groups.cast_signed());
                match l.padding {
                    Padding::Explicit(padding) => {
                        x.conv2d(weight.unwrap(), bias, stride, sizes(&padding), dilation, groups)
                    }
                    Padding::Same => {
                        x.conv2d_padding(weight.unwrap(), bias, stride, "same", dilation, groups)
                    }
                }
            }
            LayerKind::BatchNorm2d(l) => {
                let _same = self
                    .param(layer, "num_batches_tracked")
                    .unwrap()
                    .shallow_clone()
                    .g_add_scalar_(1);
                let (mean, var) =
                    (self.param(layer, "running_mean"), self.param(layer, "running_var"));
                if self.along == Along::Tree {
                    let running = [mean, var].map(|running| running.unwrap().shallow_clone());
                    let seen = [&running[0], &running[1]].map(Tensor::zeros_like);
                    let [mean, var] = seen.each_ref().map(Some);
                    let y = x.batch_norm(weight, bias, mean, var, true, 1.0, l.eps, true);
                    self.seen.borrow_mut().push((running, l.momentum.unwrap(), seen));
                    return y;
                }
                x.batch_norm(weight, bias, mean, var, true, l.momentum.unwrap(), l.eps, true)
            }
            LayerKind::MaxPool2d(l) => {
                let (padding, dilation) = (sizes(&l.padding), sizes(&l.dilation));
                x.max_pool2d(
                    sizes(&l.kernel_size),
                    sizes(&l.stride),
                    padding,
                    dilation,
                    l.ceil_mode,
                )
            }
            LayerKind::AvgPool2d(l) => {
                let (kernel, stride, padding) =
                    (sizes(&l.kernel_size), sizes(&l.stride), sizes(&l.padding));
                x.avg_pool2d(
                    kernel,
                    stride,
                    padding,
                    l.ceil_mode,
                    l.count_include_pad,
                    l.divisor_override,
                )
            }
            LayerKind::AdaptiveAvgPool2d(l) => x.adaptive_avg_pool2d(sizes(&l.output_size)),
            LayerKind::Flatten(l) => x.flatten(l.start_dim, l.end_dim),
            LayerKind::Add(_) => {
                inputs[1..].iter().fold(x.shallow_clone(), |sum, other| sum + *other)
            }
            LayerKind::Mul(_) => {
                inputs[1..].iter().fold(x.shallow_clone(), |product, other| product * *other)
            }
            LayerKind::Concat(l) => Tensor::cat(inputs, l.dim),
            other => panic!("{} is in none of these models; write it here", other.name()),
        }
    }
}

/// Sums neighbours first, then neighbouring sums, and so on. A sum without a neighbour moves up.
fn tree_sum(sums: &[f64]) -> f64 {
    let mut sums = sums.to_vec();
    while sums.len() > 1 {
        sums =
            sums.chunks(2).map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap()).collect();
    }
    sums.first().copied().unwrap_or(0.0)
}

fn sizes(sizes: &[u64]) -> Vec<i64> {
    sizes.iter().map(|size| size.cast_signed()).collect()
}

/// libtorch's fused optimizers. No other operation yields the same bits.
enum Optimizer {
    Sgd { args: Sgd, buffers: Vec<Tensor>, started: bool },
    Adam { args: Adam, averages: Vec<Tensor>, squares: Vec<Tensor>, step: Vec<Tensor> },
}

impl Optimizer {
    fn new(spec: OptimizerSpec, params: &[&Tensor]) -> Self {
        let zeros = || params.iter().map(|param| param.detach().zeros_like()).collect::<Vec<_>>();
        let (args, decoupled) = match spec {
            OptimizerSpec::SGD { lr, momentum, dampening, weight_decay, nesterov } => {
                let args = Sgd { lr, momentum, dampening, weight_decay, nesterov };
                return Optimizer::Sgd { args, buffers: zeros(), started: false };
            }
            OptimizerSpec::Adam(args) => (args, false),
            OptimizerSpec::AdamW(args) => (args, true),
        };
        let (beta1, beta2) = args.betas;
        let args = Adam {
            lr: args.lr,
            beta1,
            beta2,
            eps: args.eps,
            weight_decay: args.weight_decay,
            decoupled,
        };
        let step =
            params.iter().map(|_| Tensor::zeros([0i64; 0], (Kind::Float, Device::Cpu))).collect();
        Optimizer::Adam { args, averages: zeros(), squares: zeros(), step }
    }

    fn step(&mut self, params: &[&Tensor], grads: &[&Tensor]) {
        match self {
            Optimizer::Sgd { args, buffers, started } => {
                let buffers: Vec<&Tensor> =
                    if args.momentum == 0.0 { Vec::new() } else { buffers.iter().collect() };
                optim::sgd(params, grads, &buffers, !*started, args).unwrap();
                *started = true;
            }
            Optimizer::Adam { args, averages, squares, step } => {
                step.iter_mut().for_each(|step| drop(step.g_add_scalar_(1)));
                let [averages, squares, step] =
                    [averages, squares, step].map(|list| list.iter().collect::<Vec<_>>());
                let state = AdamState { exp_avg: &averages, exp_avg_sq: &squares, step: &step };
                optim::adam(params, grads, state, args).unwrap();
            }
        }
    }
}
