//! The stage engine alone on one thread: 8 encoder layers as one stage, 8 microbatches of 4, Adam;
//! or the model of a file.
//!
//! ```text
//! cargo run --release -p worker --example engine_bench            time and peak memory
//! cargo run --release -p worker --example engine_bench -- split   backward pass in halves
//! cargo run --release -p worker --example engine_bench -- tree    gradients summed along a tree
//! cargo run --release -p worker --example engine_bench -- examples/models/residual.yaml
//! ```

use anyhow::{bail, Result};
use layerspec::{Bindings, LayerGraph};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::loss::LossSpec;
use pipeline::optimizer::OptimizerSpec;
use pipeline::plan::StageSpec;
use pipeline::replicas::{buckets, BucketBytes};
use pipeline::task::{TreeLeaf, Update};
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use worker::engine::{
    CustomLayers, Engine, HealthCheck, LossInputs, Mode, Pass, StageConfig, StageInput, TreeTarget,
};

const ENCODER: &str = "
inputs: {x: [batch, 64, 256]}
layers:
  - repeat: 8
    layers:
      - TransformerEncoderLayer: {d_model: 256, nhead: 4, dim_feedforward: 1024, dropout: 0.0, \
                       batch_first: true, norm_first: true}
";
const BATCH: u64 = 32;
const STEPS: usize = 12;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let how = (has("split"), has("tree"));
    if !has("cold") {
        tensor::memory::keep_freed_memory();
    }
    tensor::threads::set_count(1);
    let file = arguments.iter().find(|argument| argument.ends_with(".yaml"));
    let (graph, microbatches) = match file {
        Some(file) => (LayerGraph::from_file(file)?, 1),
        None => (LayerGraph::from_yaml(ENCODER, "encoder")?, 8),
    };
    let mut engine = Engine::build(whole(&graph), &CustomLayers::default())?;
    engine.set_optimizer(OptimizerSpec::adam(1e-4));
    let (x, y) = (random(&graph, graph.inputs()[0])?, random(&graph, graph.outputs()[0])?);
    let mut times = Vec::new();
    for number in 0..STEPS as u64 {
        let begin = Instant::now();
        step(&mut engine, number, (&x, &y), microbatches, how)?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    times.drain(..2);
    times.sort_by(f64::total_cmp);
    println!(
        "{:.2} ms a step (median; least {:.2}), {} MiB at most",
        times[times.len() / 2],
        times[0],
        peak()?
    );
    Ok(())
}

fn step(
    engine: &mut Engine,
    number: u64,
    (x, y): (&Tensor, &Tensor),
    microbatches: i64,
    (split, tree): (bool, bool),
) -> Result<()> {
    let branch = TreeLeaf {
        microbatches: u32::try_from(microbatches)?,
        emit_to_replicas: None,
        last: false,
        emits_statistics: false,
    };
    for (index, (x, y)) in
        (0..).zip(x.f_chunk(microbatches, 0)?.into_iter().zip(y.f_chunk(microbatches, 0)?))
    {
        let pass = Pass {
            key: MicrobatchKey { batch: number, index },
            step: number,
            mode: Mode::Train,
            defer_statistics: false,
            check_finite: false,
        };
        let outputs = engine.forward(&pass, vec![x])?;
        let task = LossInputs {
            output: 0,
            prediction: &outputs[0],
            target: &y,
            loss: &LossSpec::MSELoss,
            weight: 1.0 / microbatches as f64,
        };
        engine.loss(pass.key, &task, pass.mode)?;
        drop(outputs);
        let along = TreeTarget { stage: StageId(0), branch, emit: &mut |_| Ok(()) };
        let grads = vec![vec![]];
        if split {
            engine.backward_input(pass.key, grads)?;
            match tree {
                true => engine.backward_weight_into_tree(pass.key, along)?,
                false => engine.backward_weight(pass.key)?,
            }
        } else {
            match tree {
                true => engine.backward_into_tree(pass.key, grads, along)?,
                false => engine.backward(pass.key, grads)?,
            };
        }
    }
    if tree {
        engine.reduce(number, Vec::new(), Vec::new())?;
    }
    engine.optim_step(
        &Update { lr: 1e-4, scale: 1.0, clip: 1.0, skip: false },
        Vec::new(),
        HealthCheck::Off,
    )?;
    Ok(())
}

fn whole(graph: &LayerGraph) -> StageConfig {
    let input =
        |&value: &layerspec::ValueId| StageInput { value, needs_grad: false, sum_here: true };
    let layers = graph.layers().to_vec();
    let spec = StageSpec {
        stage: StageId(0),
        layers,
        inputs: Vec::new(),
        outputs: Vec::new(),
        tied_copies: Vec::new(),
        tied_owners: Vec::new(),
    };
    StageConfig {
        buckets: buckets(&spec, BucketBytes::default(), None),
        shard_id: None,
        shards_gradients: false,
        shards_parameters: false,
        layers: spec.layers,
        inputs: graph.inputs().iter().map(input).collect(),
        outputs: graph.outputs().to_vec(),
        tied_copies: spec.tied_copies,
        tied_owners: spec.tied_owners,
        seed: 0,
        device: Device::Cpu,
    }
}

fn random(graph: &LayerGraph, value: layerspec::ValueId) -> Result<Tensor> {
    let bindings = Bindings::new().with("batch", BATCH);
    let dims =
        graph.value(value).ty.dims().iter().map(|dim| dim.eval(&bindings).map(u64::cast_signed));
    let Some(shape) = dims.collect::<Option<Vec<_>>>() else {
        bail!("only the batch may be a word")
    };
    Ok(Tensor::f_randn(shape, (Kind::Float, Device::Cpu))?)
}

/// The most memory that this process has had, in MiB.
fn peak() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.unwrap_or(0) / 1024)
}
