//! The calls of a user, with their data, so that the fleet and the oracle get the same input.

use crate::math::{Fake, Hash};
use layerspec::{Layer, LayerGraph, ValueId};
use pipeline::ids::StageId;
use pipeline::message::RoundUpdate;
use pipeline::replicas::UniqueId;
use pipeline::samples::{Column, DataId, DataSpec, Reading};
use pipeline::task::{LayerProbe, LayerTimes};
use pipeline::{LossSpec, OptimizerSpec};
use std::collections::BTreeMap;
use testkit::Random;

/// The seed of every run. The simulator's own seed must make no difference.
pub const SEED: u64 = 42;

/// The loss of every round that has one.
pub const MICROBATCH_LOSS: LossSpec = LossSpec::MSELoss;

/// A call of the user. The number of the step also tells which data it works on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Distribute,
    /// Sets the optimizer, with this learning rate in thousandths.
    Optimizer(u64),
    State,
    /// Fetches the state, with that of the optimizer.
    Checkpoint,
    /// Sets the optimizer, with this learning rate in thousandths, and loads the state of the last
    /// checkpoint.
    Resume(u64),
    /// Loads the current state, changed by this number. 0 leaves it unchanged.
    Load(u64),
    Train(u64),
    /// A training step that leaves its gradients for a later one.
    Gather(u64),
    Eval(u64),
    Forward(u64),
    Backward(u64),
    OptimStep(u64),
    /// A forward pass without a backward pass.
    Discard(u64),
    Measure,
    /// A digest of every replica's weights.
    Digest,
}

/// An answer with values in place of slots, losses as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    pub losses: Vec<(u32, u32)>,
    pub outputs: Vec<(u32, ValueId, Fake)>,
    pub state: BTreeMap<String, Fake>,
    /// As bits.
    pub grad_norm: Option<u64>,
    /// The ids by which replicas find each other.
    pub unique_ids: Vec<(StageId, UniqueId)>,
    /// The layer times that every worker reports.
    pub measured: Vec<LayerTimes>,
}

/// Calls of every kind in a random order that makes sense, ending with the state.
pub fn script(random: &mut Random, length: u64) -> Vec<Call> {
    let mut calls = vec![Call::Distribute, Call::Optimizer(1)];
    for turn in 1..=length {
        let step = turn * 2 + random.below(2);
        match random.below(17) {
            0..=4 => calls.push(Call::Train(step)),
            5 => calls.push(Call::Eval(step)),
            6 => calls.extend([Call::Forward(step), Call::Backward(step), Call::OptimStep(step)]),
            7 => calls.extend([
                Call::Forward(step),
                Call::Eval(step),
                Call::Forward(step + 100),
                Call::Backward(step),
                Call::Backward(step + 100),
                Call::OptimStep(step),
            ]),
            8 => calls.push(Call::State),
            9 => calls.extend([Call::State, Call::Load(random.below(2) * turn)]),
            10 => calls.push(Call::Optimizer(turn)),
            11 => calls.extend([Call::Forward(step), Call::Discard(step)]),
            12 => calls.extend([
                Call::Gather(step),
                Call::Eval(step),
                Call::Gather(step + 100),
                Call::Train(step + 200),
            ]),
            13 => calls.push(Call::Measure),
            14 => calls.push(Call::Digest),
            15 => {
                calls.extend([
                    Call::Checkpoint,
                    Call::Train(step),
                    Call::Optimizer(turn),
                    Call::Resume(turn),
                ]);
                calls.extend([Call::Train(step + 100), Call::Checkpoint]);
            }
            _ => calls.extend([Call::Distribute, Call::Optimizer(turn)]),
        }
    }
    calls.push(Call::State);
    calls
}

pub fn optimizer(lr: u64) -> OptimizerSpec {
    OptimizerSpec::adam(lr as f64 / 1000.0)
}

pub fn loaded(name: &str, value: Fake, salt: u64) -> Fake {
    if salt == 0 {
        value
    } else {
        Hash::of("load").text(name).add(value).add(salt).end()
    }
}

/// The update of a step. Each step has another rate and scale.
pub fn update(step: u64, max_norm: Option<f64>) -> RoundUpdate {
    RoundUpdate {
        lr: 1.0 / (step as f64 + 1.0),
        scale: if step.is_multiple_of(3) { 0.5 } else { 1.0 },
        max_norm,
        skip_infinite: false,
    }
}

/// Every layer, to be measured.
pub fn probes(graph: &LayerGraph) -> Vec<LayerProbe> {
    let probe =
        |layer: &Layer| LayerProbe { layer: layer.clone(), inputs: Vec::new(), input_grads: true };
    graph.layers().iter().map(probe).collect()
}

pub fn wants_outputs(step: u64) -> bool {
    step.is_multiple_of(2)
}

/// Uneven weights, because the last microbatch of a batch may be smaller.
pub fn loss_weights(microbatches: u32) -> Vec<f64> {
    let total: u32 = (1..=microbatches).sum();
    (1..=microbatches).map(|samples| f64::from(samples) / f64::from(total)).collect()
}

pub fn input(step: u64, microbatch: u32, index: usize) -> Fake {
    Hash::of("data").add(step).add(u64::from(microbatch)).add(index as u64).end()
}

pub fn target(step: u64, microbatch: u32) -> Fake {
    Hash::of("target").add(step).add(u64::from(microbatch)).end()
}

/// The data that workers read from their own files.
pub fn own_data(graph: &LayerGraph) -> DataSpec {
    DataSpec {
        id: DataId([1; 32]),
        description: b"numbers".to_vec(),
        inputs: graph.inputs().to_vec(),
    }
}

/// The number of the only sample of a microbatch.
pub fn sample(step: u64, microbatch: u32) -> i64 {
    (step * 1000 + u64::from(microbatch)) as i64
}

/// The content of a worker's files.
pub fn read(data: &DataSpec, reading: &Reading) -> Vec<Fake> {
    assert_eq!(reading.data, data.id);
    let [sample] = reading.batch[reading.part.clone()] else {
        panic!("one sample a microbatch: {reading:?}")
    };
    let (step, microbatch) = (sample as u64 / 1000, (sample % 1000) as u32);
    let column = |column: &Column| match column {
        Column::Target => target(step, microbatch),
        Column::Input(value) => {
            let index =
                data.inputs.iter().position(|input| input == value).expect("an input of the model");
            input(step, microbatch, index)
        }
    };
    reading.columns.iter().map(column).collect()
}

/// The gradients a user gives for an output: usually one, sometimes none or two.
pub fn grads(step: u64, microbatch: u32, output: usize) -> Vec<Fake> {
    let hash =
        Hash::of("user gradient").add(step).add(u64::from(microbatch)).add(output as u64).end();
    (0..[1, 1, 0, 2][hash as usize % 4]).map(|n| hash.wrapping_add(n)).collect()
}
