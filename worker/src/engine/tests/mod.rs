//! The stage engine alone, without a worker around it.

mod aten;
mod chain;
mod constants;
mod cuts;
mod dropout;
mod errors;
mod formulas;
mod gathering;
mod gradients;
mod halves;
mod memory;
mod models;
mod norms;
mod optimizer_parts;
mod own;
mod precision;
mod pytorch;
mod replicas;
mod states;
mod ties;
mod undrawn;
mod whole_graph;

use super::*;
use crate::engine::passes::saved_passes::SavedPasses;
use crate::test_device::device;
use layerspec::{LayerGraph, Recompute};
use pipeline::ids::MicrobatchKey;
use pipeline::loss::{Classes, LossSpec};
use pipeline::optimizer::OptimizerSpec;
use pipeline::task::Update;
use std::collections::HashMap;
use tch::{Device, Kind, Tensor};
use tensor::random::Key;

fn graph(yaml: &str) -> LayerGraph {
    // One thread each, because tests run in parallel.
    tensor::threads::set_count(1);
    LayerGraph::from_yaml(yaml, "test.yaml").unwrap()
}

/// The whole model as one stage. With `grad` the model's inputs need their gradients, too.
fn whole(graph: &LayerGraph, grad: bool) -> StageConfig {
    let inputs = graph.inputs().iter().map(|&value| StageInput {
        value,
        needs_grad: grad && graph.value(value).ty.dtype.is_floating(),
        sum_here: true,
    });
    StageConfig {
        layers: graph.layers().to_vec(),
        inputs: inputs.collect(),
        outputs: graph.outputs().to_vec(),
        tied_copies: Vec::new(),
        tied_owners: Vec::new(),
        buckets: Vec::new(),
        shard_id: None,
        shards_gradients: false,
        shards_parameters: false,
        seed: 11,
        device: Device::Cpu,
    }
}

fn build(stage: StageConfig) -> Result<Engine, EngineError> {
    Engine::build(stage, &CustomLayers::default())
}

fn engine(yaml: &str) -> Engine {
    build(whole(&graph(yaml), true)).unwrap()
}

/// The optimizer's state, without shards.
fn whole_state(engine: &Engine) -> Vec<(String, Tensor)> {
    let state = engine.optimizer_state(OptimizerStateScope::All).unwrap().into_iter();
    state
        .map(|OptimizerTensor { name, start, tensor }| {
            (name, start.map_or(tensor, |start| panic!("a part from {start}")))
        })
        .collect()
}

fn key(index: u32) -> MicrobatchKey {
    MicrobatchKey { batch: 1, index }
}

fn train(index: u32) -> Pass {
    Pass {
        key: key(index),
        step: 1,
        mode: Mode::Train,
        defer_statistics: false,
        check_finite: false,
    }
}

fn eval() -> Pass {
    Pass { key: key(0), step: 1, mode: Mode::Eval, defer_statistics: false, check_finite: false }
}

/// Normal numbers that depend only on `name`.
fn normal(name: &str, shape: &[i64]) -> Tensor {
    Key::new(5)
        .text(name)
        .stream(Device::Cpu)
        .unwrap()
        .normal(shape, Kind::Float, 0.0, 1.0)
        .unwrap()
}

fn mse<'a>(prediction: &'a Tensor, target: &'a Tensor, weight: f64) -> LossInputs<'a> {
    LossInputs { output: 0, prediction, target, loss: &LossSpec::MSELoss, weight }
}

fn assert_same(left: &[(String, Tensor)], right: &[(String, Tensor)], what: &str) {
    let names =
        |state: &[(String, Tensor)]| state.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(left), names(right), "{what}");
    for ((name, left), (_, right)) in left.iter().zip(right) {
        assert!(left.equal(right), "{what}: {name} differs");
    }
}

fn copies(gradients: Result<Vec<(&str, Option<Tensor>)>, EngineError>) -> Vec<(String, Tensor)> {
    gradients
        .unwrap()
        .into_iter()
        .filter_map(|(name, grad)| Some((name.to_owned(), grad?.copy())))
        .collect()
}

/// A plain step with this learning rate.
fn optim_step(engine: &mut Engine, lr: f64) -> Result<(), EngineError> {
    engine
        .optim_step(
            &Update { lr, scale: 1.0, clip: 1.0, skip: false },
            Vec::new(),
            HealthCheck::Off,
        )
        .map(drop)
}
