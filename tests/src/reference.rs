//! The slow plain way that everything is compared with: one process, the whole model as one autograd
//! graph, each layer by libtorch's own function, gradients added up by autograd itself.

use crate::{Case, Training, BATCH, STEPS};
use bossman::Loss;
use layerspec::layers::{Approximate, Padding};
use layerspec::{Init, Layer, LayerGraph, LayerKind, Role, ValueId};
use pipeline::OptimizerSpec;
use std::collections::{BTreeMap, HashMap};
use tch::{Device, Kind, Reduction, Tensor};
use tensor::optim::{self, Adam, AdamState, Sgd};
use tensor::random::Key;

/// Trains a case in this thread.
pub fn one_process(case: &Case, microbatches: u32) -> Training {
    let mut net = Net::new(case.model.graph(), case.seed);
    let mut optimizer = Optimizer::new(case.optimizer, &net.trained());
    let losses: Vec<f32> = (0..STEPS)
        .map(|step| {
            let (x, target) = case.batch(step);
            let parts = i64::from(microbatches);
            let parts = x.tensor_split(parts, 0).into_iter().zip(target.tensor_split(parts, 0));
            let losses = (0u64..).zip(parts).map(|(microbatch, (x, target))| {
                let weight = x.size()[0] as f64 / BATCH as f64;
                let prediction = net.forward(&x, step as u64 + 1, microbatch);
                let loss = loss(case.loss, &prediction, &target) * weight;
                loss.backward();
                loss.double_value(&[]) as f32
            });
            let loss = losses.reduce(|sum, loss| sum + loss).unwrap();
            optimizer.step(&net.trained());
            net.forget_gradients();
            loss
        })
        .collect();
    Training::new(&losses, net.params.iter().map(|(name, (tensor, _))| (name.as_str(), tensor)))
}

fn loss(loss: Loss, prediction: &Tensor, target: &Tensor) -> Tensor {
    match loss {
        Loss::MSELoss => prediction.mse_loss(target, Reduction::Mean),
        Loss::CrossEntropyLoss { label_smoothing } => {
            prediction.cross_entropy_loss::<Tensor>(target, None, Reduction::Mean, -100, label_smoothing)
        }
    }
}

/// The model with its parameters and buffers by name.
struct Net<'a> {
    graph: &'a LayerGraph,
    seed: u64,
    params: BTreeMap<String, (Tensor, Role)>,
}

impl<'a> Net<'a> {
    fn new(graph: &'a LayerGraph, seed: u64) -> Self {
        let mut params = BTreeMap::new();
        for layer in graph.layers() {
            for spec in graph.own_params(layer.id) {
                let shape: Vec<i64> = spec.shape.iter().map(|size| size.cast_signed()).collect();
                let kind = tensor::kind_of(spec.dtype);
                let key = Key::new(seed).text("init").text(&layer.name).text(spec.name);
                let tensor = match spec.init {
                    Init::Zeros => Tensor::zeros(&shape, (kind, Device::Cpu)),
                    Init::Ones => Tensor::ones(&shape, (kind, Device::Cpu)),
                    Init::Uniform { low, high } => {
                        key.stream(Device::Cpu).unwrap().uniform(&shape, kind, low, high).unwrap()
                    }
                    other => panic!("no layer of these models starts with {other:?}"),
                };
                let tensor = tensor.set_requires_grad(spec.role == Role::Parameter);
                params.insert(format!("{}.{}", layer.name, spec.name), (tensor, spec.role));
            }
        }
        Net { graph, seed, params }
    }

    fn trained(&self) -> Vec<&Tensor> {
        self.params.values().filter(|(_, role)| *role == Role::Parameter).map(|(tensor, _)| tensor).collect()
    }

    /// New leaves on the same memory, so that the next microbatch's gradient is the first.
    fn forget_gradients(&mut self) {
        for (tensor, role) in self.params.values_mut() {
            *tensor = tensor.detach().set_requires_grad(*role == Role::Parameter);
        }
    }

    fn forward(&self, x: &Tensor, step: u64, microbatch: u64) -> Tensor {
        let mut values: HashMap<ValueId, Tensor> = HashMap::from([(self.graph.inputs()[0], x.shallow_clone())]);
        for layer in self.graph.layers() {
            let inputs: Vec<&Tensor> = layer.inputs.iter().map(|value| &values[value]).collect();
            let mask = || Key::new(self.seed).text("dropout").number(step).number(microbatch).text(&layer.name);
            let output = self.apply(layer, &inputs, mask);
            values.insert(layer.outputs[0], output);
        }
        values[&self.graph.outputs()[0]].shallow_clone()
    }

    fn param(&self, layer: &Layer, name: &str) -> Option<&Tensor> {
        self.params.get(&format!("{}.{name}", layer.name)).map(|(tensor, _)| tensor)
    }

    fn apply(&self, layer: &Layer, inputs: &[&Tensor], mask: impl Fn() -> Key) -> Tensor {
        let x = inputs[0];
        let (weight, bias) = (self.param(layer, "weight"), self.param(layer, "bias"));
        match &layer.kind {
            LayerKind::Linear(_) => x.linear(weight.unwrap(), bias),
            LayerKind::ReLU(_) => x.relu(),
            LayerKind::SiLU(_) => x.silu(),
            LayerKind::Sigmoid(_) => x.sigmoid(),
            LayerKind::Tanh(_) => x.tanh(),
            LayerKind::GELU(l) if l.approximate == Approximate::Tanh => x.gelu("tanh"),
            LayerKind::LayerNorm(l) => x.layer_norm(sizes(&l.normalized_shape), weight, bias, l.eps, true),
            LayerKind::Dropout(l) => {
                let keep = 1.0 - l.p;
                let mask = mask().stream(Device::Cpu).unwrap().bernoulli_mask(&x.size(), Kind::Float, keep).unwrap();
                x * (mask / keep)
            }
            LayerKind::Conv2d(l) => {
                let (stride, dilation, groups) = (sizes(&l.stride), sizes(&l.dilation), l.groups.cast_signed());
                match l.padding {
                    Padding::Explicit(padding) => {
                        x.conv2d(weight.unwrap(), bias, stride, sizes(&padding), dilation, groups)
                    }
                    Padding::Same => x.conv2d_padding(weight.unwrap(), bias, stride, "same", dilation, groups),
                }
            }
            LayerKind::BatchNorm2d(l) => {
                let _same = self.param(layer, "num_batches_tracked").unwrap().shallow_clone().g_add_scalar_(1);
                let (mean, var) = (self.param(layer, "running_mean"), self.param(layer, "running_var"));
                x.batch_norm(weight, bias, mean, var, true, l.momentum.unwrap(), l.eps, true)
            }
            LayerKind::MaxPool2d(l) => {
                let (padding, dilation) = (sizes(&l.padding), sizes(&l.dilation));
                x.max_pool2d(sizes(&l.kernel_size), sizes(&l.stride), padding, dilation, l.ceil_mode)
            }
            LayerKind::AvgPool2d(l) => {
                let (kernel, stride, padding) = (sizes(&l.kernel_size), sizes(&l.stride), sizes(&l.padding));
                x.avg_pool2d(kernel, stride, padding, l.ceil_mode, l.count_include_pad, l.divisor_override)
            }
            LayerKind::AdaptiveAvgPool2d(l) => x.adaptive_avg_pool2d(sizes(&l.output_size)),
            LayerKind::Flatten(l) => x.flatten(l.start_dim, l.end_dim),
            LayerKind::Add(_) => inputs[1..].iter().fold(x.shallow_clone(), |sum, other| sum + *other),
            LayerKind::Mul(_) => inputs[1..].iter().fold(x.shallow_clone(), |product, other| product * *other),
            LayerKind::Concat(l) => Tensor::cat(inputs, l.dim),
            other => panic!("{} is in none of these models; write it here", other.name()),
        }
    }
}

fn sizes(sizes: &[u64]) -> Vec<i64> {
    sizes.iter().map(|size| size.cast_signed()).collect()
}

/// libtorch's fused optimizers, whose bits no other operation has.
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
        let args = Adam { lr: args.lr, beta1, beta2, eps: args.eps, weight_decay: args.weight_decay, decoupled };
        let step = params.iter().map(|_| Tensor::zeros([0i64; 0], (Kind::Float, Device::Cpu))).collect();
        Optimizer::Adam { args, averages: zeros(), squares: zeros(), step }
    }

    fn step(&mut self, params: &[&Tensor]) {
        let grads: Vec<Tensor> = params.iter().map(|param| param.grad()).collect();
        let grads: Vec<&Tensor> = grads.iter().collect();
        match self {
            Optimizer::Sgd { args, buffers, started } => {
                let buffers: Vec<&Tensor> = buffers.iter().collect();
                optim::sgd(params, &grads, &buffers, !*started, args).unwrap();
                *started = true;
            }
            Optimizer::Adam { args, averages, squares, step } => {
                step.iter_mut().for_each(|step| drop(step.g_add_scalar_(1)));
                let [averages, squares, step] = [averages, squares, step].map(|list| list.iter().collect::<Vec<_>>());
                let state = AdamState { exp_avg: &averages, exp_avg_sq: &squares, step: &step };
                optim::adam(params, &grads, state, args).unwrap();
            }
        }
    }
}
