//! Replicas of a stage have the gradients of one worker that takes all microbatches, to the bit.

use super::halves::ENCODER;
use super::models::{CONV, PARTS, TEXT};
use super::*;
use crate::compute::payloads::to_payload;
use crate::compute::task_tensors::to_tensor;
use link::Payload;
use pipeline::ids::StageId;
use pipeline::plan::StageSpec;
use pipeline::replicas::{buckets, BucketBytes, Node};
use pipeline::task::{EarlyOutput, TreeLeaf};
use std::collections::BTreeMap;

/// Parameters that layers share, one layer frozen, one that no gradient reaches, statistics with
/// and without momentum.
const MIXED: &str = "
model: mixed
inputs: {ids: {shape: [batch, 6], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 13, embedding_dim: 8}
    name: embedding
  - Linear: {in_features: 8, out_features: 8}
    out_variables: [middle]
  - LayerNorm: {normalized_shape: 8}
  - Transpose: {dim0: 1, dim1: 2}
  - BatchNorm1d: {num_features: 8}
  - BatchNorm1d: {num_features: 8, momentum: null}
    freeze: true
  - Transpose: {dim0: 1, dim1: 2}
  - Linear: {in_features: 8, out_features: 8}
    freeze: true
  - Tanh
  - Linear: {in_features: 8, out_features: 13, bias: false}
    share: embedding
    out_variables: [out]
  - Linear: {in_features: 8, out_features: 300}
    input: middle
    out_variables: [side]
outputs: [out, side]
";

/// The assignment of seven microbatches to replicas.
const ASSIGNMENTS: [&[usize]; 4] = [
    &[0, 0, 0, 0, 0, 0, 0],
    &[0, 0, 0, 0, 1, 1, 1],
    &[0, 0, 0, 1, 1, 0, 0],
    &[2, 0, 1, 1, 0, 1, 2],
];

fn spec(model: &StageConfig) -> StageSpec {
    let (layers, tied_copies, tied_owners) =
        (model.layers.clone(), model.tied_copies.clone(), model.tied_owners.clone());
    StageSpec {
        stage: StageId(0),
        layers,
        inputs: Vec::new(),
        outputs: Vec::new(),
        tied_copies,
        tied_owners,
    }
}

fn replica(graph: &LayerGraph) -> Engine {
    let mut model = whole(graph, false);
    model.buckets = buckets(&spec(&model), BucketBytes { first: 100, other: 1500 }, None);
    let mut engine = build(model).unwrap();
    engine.set_optimizer(OptimizerSpec::adam(1e-2));
    engine
}

#[derive(Clone, Copy, Debug)]
enum Halves {
    AtOnce,
    Apart,
}

/// The replicas of a stage, and the results that they emitted.
struct ReplicaGroup {
    graph: LayerGraph,
    engines: Vec<Engine>,
    halves: Halves,
}

/// The slices for each node.
type Sums = Vec<(Node, Vec<Payload>)>;
/// The slices of each replica's shard of each bucket.
type Buckets = Vec<Vec<Vec<Tensor>>>;
type Named = Vec<(String, Tensor)>;

/// The tensors that replicas emitted.
#[derive(Default)]
struct Handed {
    /// By bucket and receiver.
    sums: BTreeMap<(u32, usize), Sums>,
    /// By sender.
    statistics: BTreeMap<usize, Vec<Tensor>>,
}

impl Handed {
    fn take(&mut self, from: usize, handed: EarlyOutput<Tensor>) {
        match handed {
            EarlyOutput::Sums { bucket, shards, .. } => {
                for (to, sums) in shards.into_iter().enumerate() {
                    let sums = sums.into_iter().map(|(node, slices)| {
                        (
                            node,
                            slices
                                .iter()
                                .map(|slice| over_the_wire(&to_payload(slice).unwrap()))
                                .collect(),
                        )
                    });
                    self.sums.entry((bucket, to)).or_default().extend(sums);
                }
            }
            EarlyOutput::Updated { .. } => panic!("nothing is shared out"),
            EarlyOutput::Health(_) => panic!("nobody asked"),
            EarlyOutput::Statistics { tensors, .. } => {
                let copies = tensors.iter().map(Tensor::copy).collect();
                assert!(self.statistics.insert(from, copies).is_none(), "once a round");
            }
        }
    }
}

fn over_the_wire(payload: &Payload) -> Payload {
    Payload { meta: payload.meta.clone(), bytes: bytes::Bytes::from(payload.bytes.to_vec()) }
}

impl ReplicaGroup {
    fn new(yaml: &str, replicas: usize, halves: Halves) -> Self {
        let graph = graph(yaml);
        ReplicaGroup { engines: (0..replicas).map(|_| replica(&graph)).collect(), graph, halves }
    }

    fn input(&self, name: &str, microbatch: u32) -> Tensor {
        let ty = &self.graph.value(self.graph.inputs()[0]).ty;
        let bindings = layerspec::Bindings::new().with("batch", 2 + u64::from(microbatch) % 3);
        let shape: Vec<i64> =
            ty.dims().iter().map(|dim| dim.eval(&bindings).unwrap() as i64).collect();
        let numbers = normal(&format!("{name} {microbatch}"), &shape);
        match ty.dtype.is_floating() {
            true => numbers,
            false => (numbers.abs() * 5.0).to_kind(Kind::Int64).clamp(0, 12),
        }
    }

    /// Runs the passes of one batch, and returns the early outputs of the replicas. Backward passes
    /// begin with the last microbatch.
    fn passes(&mut self, batch: u64, microbatch_assignment: &[usize]) -> Handed {
        let (microbatches, replicas) = (microbatch_assignment.len() as u32, self.engines.len());
        let mut handed = Handed::default();
        for number in 0..replicas {
            let taken: Vec<u32> = (0..microbatches)
                .filter(|m| microbatch_assignment[*m as usize] == number)
                .collect();
            let mut grads = BTreeMap::new();
            for index in &taken {
                let key = MicrobatchKey { batch, index: *index };
                let pass = Pass {
                    key,
                    step: batch,
                    mode: Mode::Train,
                    defer_statistics: true,
                    check_finite: false,
                };
                let input = self.input(&format!("x {batch}"), *index);
                let outputs = self.engines[number].forward(&pass, vec![input]).unwrap();
                let grad = normal(&format!("g {batch} {index}"), &outputs[0].size());
                let mut all: Vec<Vec<Tensor>> = outputs.iter().map(|_| Vec::new()).collect();
                all[0] = vec![grad];
                grads.insert(*index, all);
            }
            for index in taken.iter().rev() {
                let last = Some(index) == taken.first();
                let branch = TreeLeaf {
                    microbatches,
                    emit_to_replicas: (last && replicas > 1).then_some(replicas as u16),
                    last,
                    emits_statistics: last && replicas > 1,
                };
                let key = MicrobatchKey { batch, index: *index };
                let mut emit = |sums| {
                    handed.take(number, sums);
                    Ok(())
                };
                let along = TreeTarget { stage: StageId(0), branch, emit: &mut emit };
                let (engine, grads) = (&mut self.engines[number], grads.remove(index).unwrap());
                match self.halves {
                    Halves::AtOnce => drop(engine.backward_into_tree(key, grads, along).unwrap()),
                    Halves::Apart => {
                        engine.backward_input(key, grads).unwrap();
                        engine.backward_weight_into_tree(key, along).unwrap();
                    }
                }
            }
        }
        handed
    }

    fn round(&mut self, batch: u64, microbatch_assignment: &[usize]) {
        let handed = self.passes(batch, microbatch_assignment);
        let microbatches = microbatch_assignment.len() as u32;
        let mut buckets: Vec<Vec<Vec<Payload>>> = Vec::new();
        for ((bucket, _), sums) in &handed.sums {
            buckets.resize_with(*bucket as usize + 1, Vec::new);
            buckets[*bucket as usize].push(runtime::testing::sum(microbatches, sums).unwrap());
        }
        for (number, engine) in self.engines.iter_mut().enumerate() {
            let slices = |slices: &Vec<Payload>| {
                slices.iter().map(|slice| to_tensor(&slice.clone().into()).unwrap()).collect()
            };
            let buckets =
                buckets.iter().map(|shards| shards.iter().map(slices).collect()).collect();
            let others = handed.statistics.iter().filter(|(from, _)| **from != number);
            let others = others.map(|(_, tensors)| tensors.iter().map(Tensor::copy).collect());
            engine.reduce(batch, buckets, others.collect()).unwrap();
        }
    }

    /// The gradients, and the weights and statistics after a step with them. They are the same on
    /// all replicas.
    fn step(&mut self) -> Named {
        let after = |engine: &mut Engine| {
            let mut all = copies(engine.gradients());
            optim_step(engine, 1e-2).unwrap();
            all.extend(
                engine
                    .state()
                    .unwrap()
                    .into_iter()
                    .map(|(name, tensor)| (format!("new {name}"), tensor)),
            );
            all
        };
        let found: Vec<_> = self.engines.iter_mut().map(after).collect();
        found.iter().for_each(|other| assert_same(other, &found[0], "replicas"));
        found.into_iter().next().unwrap()
    }
}

fn replicas_of(microbatch_assignment: &[usize]) -> usize {
    microbatch_assignment.iter().max().unwrap() + 1
}

/// Runs two steps. The second accumulates the gradients of two batches.
fn learned(yaml: &str, microbatch_assignment: &[usize], halves: Halves) -> Named {
    let mut group = ReplicaGroup::new(yaml, replicas_of(microbatch_assignment), halves);
    group.round(1, microbatch_assignment);
    let mut all = group.step();
    group.round(2, microbatch_assignment);
    group.round(3, &microbatch_assignment[..5]);
    all.extend(group.step());
    all
}

#[test]
fn the_microbatch_assignment_does_not_change_a_bit() {
    for yaml in [MIXED, CONV, PARTS, TEXT, ENCODER] {
        let alone = learned(yaml, ASSIGNMENTS[0], Halves::AtOnce);
        assert!(alone.iter().any(|(name, _)| name.ends_with("weight")));
        assert_same(&learned(yaml, ASSIGNMENTS[0], Halves::Apart), &alone, "in halves");
        for microbatch_assignment in &ASSIGNMENTS[1..] {
            for halves in [Halves::AtOnce, Halves::Apart] {
                assert_same(
                    &learned(yaml, microbatch_assignment, halves),
                    &alone,
                    &format!("{yaml} {microbatch_assignment:?} {halves:?}"),
                );
            }
        }
    }
}

#[test]
fn a_replica_without_a_microbatch_comes_to_the_same() {
    let mut found = Vec::new();
    for replicas in [1, 3] {
        let mut group = ReplicaGroup::new(MIXED, replicas, Halves::AtOnce);
        group.round(1, if replicas == 1 { &[0, 0] } else { &[0, 2] });
        found.push(group.step());
    }
    assert_same(&found[1], &found[0], "a replica had nothing to do");
}

#[test]
fn frozen_and_unreached_parameters_have_no_gradient() {
    let mut group = ReplicaGroup::new(MIXED, 2, Halves::AtOnce);
    group.round(1, &[0, 1, 0]);
    let names: Vec<String> =
        copies(group.engines[1].gradients()).into_iter().map(|(name, _)| name).collect();
    let wanted =
        ["embedding.weight", "1.weight", "1.bias", "2.weight", "2.bias", "4.weight", "4.bias"];
    assert_eq!(names, wanted);
}

/// The engine without a tree.
fn in_turn(yaml: &str, microbatches: u32) -> (Named, Named) {
    let mut group = ReplicaGroup::new(yaml, 1, Halves::AtOnce);
    for index in 0..microbatches {
        let input = group.input("x 1", index);
        let pass = Pass {
            key: key(index),
            step: 1,
            mode: Mode::Train,
            defer_statistics: false,
            check_finite: false,
        };
        let outputs = group.engines[0].forward(&pass, vec![input]).unwrap();
        let mut grads: Vec<Vec<Tensor>> = outputs.iter().map(|_| Vec::new()).collect();
        grads[0] = vec![normal(&format!("g 1 {index}"), &outputs[0].size())];
        group.engines[0].backward(key(index), grads).unwrap();
    }
    (copies(group.engines[0].gradients()), group.engines[0].state().unwrap())
}

#[test]
fn along_the_tree_the_sum_and_the_statistics_are_what_they_are_in_turn_but_for_rounding() {
    for yaml in [MIXED, CONV, PARTS, TEXT, ENCODER] {
        let (gradients, state) = in_turn(yaml, 7);
        let mut group = ReplicaGroup::new(yaml, 2, Halves::AtOnce);
        group.round(1, ASSIGNMENTS[1]);
        let found = [copies(group.engines[0].gradients()), group.engines[0].state().unwrap()]
            .into_iter()
            .flatten();
        for ((name, found), (other, wanted)) in found.zip(gradients.into_iter().chain(state)) {
            assert_eq!(name, other);
            let scale = wanted.abs().max().double_value(&[]).max(1.0);
            let worst = (found - &wanted).abs().max().double_value(&[]);
            assert!(worst <= 1e-6 * scale, "{yaml} {name}: off by {worst} of {scale}");
        }
    }
}

#[test]
fn what_is_computed_again_counts_once() {
    let state = |recompute| {
        let graph = graph(CONV);
        let mut model = whole(&graph, false);
        model.buckets = buckets(&spec(&model), BucketBytes::default(), None);
        model.layers.iter_mut().for_each(|layer| layer.recompute = recompute);
        let mut group = ReplicaGroup::new(CONV, 1, Halves::AtOnce);
        group.engines = vec![build(model).unwrap()];
        group.round(1, &[0, 0, 0]);
        group.engines[0].state().unwrap()
    };
    assert_same(&state(Some(Recompute::Full)), &state(None), "state");
}

#[test]
fn memory_is_used_again() {
    for microbatch_assignment in [ASSIGNMENTS[0], ASSIGNMENTS[2]] {
        let mut group = ReplicaGroup::new(TEXT, replicas_of(microbatch_assignment), Halves::AtOnce);
        let kept = |group: &ReplicaGroup| {
            group.engines.iter().map(|engine| engine.gradients.pooled()).collect::<Vec<_>>()
        };
        let mut all = Vec::new();
        for batch in 0..4 {
            group.round(batch, microbatch_assignment);
            group.step();
            all.push(kept(&group));
        }
        assert!(all[0].iter().all(|kept| *kept > 0));
        assert_eq!((&all[1], &all[2]), (&all[2], &all[3]));
    }
}

fn along(
    branch: TreeLeaf,
    emit: &mut EmitFn<'_>,
    work: impl FnOnce(TreeTarget<'_>) -> Result<(), EngineError>,
) -> String {
    let along = TreeTarget { stage: StageId(0), branch, emit };
    work(along).map_or_else(|e| e.to_string(), |()| "done".into())
}

const SMALL: &str = "
model: small
inputs: {x: [batch, 3, 4]}
layers:
  - BatchNorm1d: {num_features: 3}
  - Linear: {in_features: 4, out_features: 200}
";

/// A pass through a microbatch of this batch.
fn small(engine: &mut Engine, (batch, index): (u64, u32), microbatches: u32) -> String {
    let key = MicrobatchKey { batch, index };
    let pass =
        Pass { key, step: 1, mode: Mode::Train, defer_statistics: true, check_finite: false };
    let kind = engine.params.params().all[0].tensor.kind();
    let input = normal("x", &[2, 3, 4]).to_kind(kind);
    let output = match engine.forward(&pass, vec![input]) {
        Ok(mut outputs) => outputs.remove(0),
        Err(e) => return e.to_string(),
    };
    let branch =
        TreeLeaf { microbatches, emit_to_replicas: None, last: false, emits_statistics: false };
    along(branch, &mut |_| Ok(()), |along| {
        engine.backward_into_tree(key, vec![vec![output]], along).map(drop)
    })
}

#[test]
fn a_leaf_that_has_no_place_is_refused_and_what_is_discarded_leaves_nothing() {
    let mut engine = replica(&graph(SMALL));
    let before = engine.state().unwrap();
    assert_eq!(small(&mut engine, (1, 0), 2), "done");
    for (key, microbatches) in [((1, 0), 2), ((1, 1), 3), ((1, 2), 2), ((2, 1), 2)] {
        let error = small(&mut engine, key, microbatches);
        assert!(
            error.contains("no leaf of the tree") || error.contains("waits for backward"),
            "{error}"
        );
        engine.saved = SavedPasses::default();
    }
    let error = engine.reduce(1, Vec::new(), Vec::new()).unwrap_err().to_string();
    assert_eq!(error, "1 of 2 microbatches are summed");
    engine.discard(1);
    engine.undo_statistics(1);
    engine.zero_grad();
    assert_eq!(small(&mut engine, (3, 0), 1), "done");
    engine.discard(3);
    assert_eq!(small(&mut engine, (4, 0), 1), "done");
    engine.zero_grad();
    assert_same(&engine.state().unwrap(), &before, "statistics of void steps");
    assert_eq!(small(&mut engine, (5, 0), 1), "done");
    engine.reduce(5, Vec::new(), Vec::new()).unwrap();
    assert_eq!(copies(engine.gradients()).len(), 4);
    let counted = &engine.state().unwrap()[4];
    assert_eq!((counted.0.as_str(), counted.1.int64_value(&[])), ("0.num_batches_tracked", 1));
}

#[test]
fn batches_under_way_are_told_apart() {
    let mut engine = replica(&graph(SMALL));
    let forward = |engine: &mut Engine, batch| {
        let pass = Pass {
            key: MicrobatchKey { batch, index: 0 },
            step: 1,
            mode: Mode::Train,
            defer_statistics: true,
            check_finite: false,
        };
        engine.forward(&pass, vec![normal(&format!("x {batch}"), &[2, 3, 4])]).unwrap().remove(0)
    };
    let outputs = [1, 2].map(|batch| forward(&mut engine, batch));
    for (batch, output) in (1..).zip(outputs) {
        let (key, branch) = (
            MicrobatchKey { batch, index: 0 },
            TreeLeaf {
                microbatches: 1,
                emit_to_replicas: None,
                last: true,
                emits_statistics: false,
            },
        );
        let back = |along: TreeTarget<'_>| {
            engine.backward_into_tree(key, vec![vec![output]], along).map(drop)
        };
        assert_eq!(along(branch, &mut |_| Ok(()), back), "done");
        engine.reduce(batch, Vec::new(), Vec::new()).unwrap();
        let state: HashMap<String, Tensor> = engine.state().unwrap().into_iter().collect();
        assert_eq!(state["0.num_batches_tracked"].int64_value(&[]), batch as i64);
    }
}

#[test]
fn a_stage_without_buckets_has_no_tree() {
    let mut engine = engine(SMALL);
    assert!(small(&mut engine, (1, 0), 1).contains("buckets"));
    assert!(engine
        .reduce(1, vec![Vec::new()], Vec::new())
        .unwrap_err()
        .to_string()
        .contains("buckets"));
}

#[test]
fn gradients_of_another_type_do_not_travel() {
    let mut engine = replica(&graph(SMALL));
    for param in &mut engine.params.params_mut().all {
        if param.tensor.is_floating_point() {
            param.tensor = param.tensor.to_kind(Kind::Double);
        }
    }
    let pass = Pass { defer_statistics: true, ..train(0) };
    let output = engine
        .forward(&pass, vec![normal("x", &[2, 3, 4]).to_kind(Kind::Double)])
        .unwrap()
        .remove(0);
    let branch =
        TreeLeaf { microbatches: 1, emit_to_replicas: Some(2), last: true, emits_statistics: true };
    let error = along(branch, &mut |_| Ok(()), |along| {
        engine.backward_into_tree(key(0), vec![vec![output]], along).map(drop)
    });
    assert_eq!(
        error,
        "the gradient of 1.weight is Double; in a stage with replicas gradients must be float32"
    );
}

/// The tensors of a round for the first of two replicas, and the replica.
fn handed_to_first() -> (Engine, Buckets, Vec<Vec<Tensor>>) {
    let mut group = ReplicaGroup::new(SMALL, 2, Halves::AtOnce);
    let handed = group.passes(1, &[0, 1]);
    let mut buckets: Buckets = Vec::new();
    for ((bucket, _), sums) in &handed.sums {
        buckets.resize_with(*bucket as usize + 1, Vec::new);
        let slices = runtime::testing::sum(2, sums).unwrap();
        buckets[*bucket as usize]
            .push(slices.iter().map(|slice| to_tensor(&slice.clone().into()).unwrap()).collect());
    }
    (
        group.engines.remove(0),
        buckets,
        vec![handed.statistics[&1].iter().map(Tensor::copy).collect()],
    )
}

#[test]
fn sums_that_replicas_send_are_checked() {
    let refused = |change: &dyn Fn(&mut Buckets), said: &str| {
        let (mut engine, mut buckets, statistics) = handed_to_first();
        change(&mut buckets);
        let error = engine.reduce(1, buckets, statistics).unwrap_err().to_string();
        assert!(error.contains("that replicas sent") && error.contains(said), "{error}");
    };
    let zeros = |size: i64| Tensor::zeros([size], (Kind::Float, Device::Cpu));
    refused(&|buckets| drop(buckets.pop()), "buckets, got");
    refused(&|buckets| drop(buckets[0].pop()), "expected 800 numbers, got Float [256]");
    refused(&|buckets| drop(buckets[0][1].pop()), "slices, got");
    refused(&|buckets| buckets[0][1][0] = zeros(7), "got Float [7]");
    refused(&|buckets| buckets[0][1][0] = buckets[0][1][0].to_kind(Kind::Int), "got Int");
    refused(&|buckets| buckets[0][1][0] = zeros(0), "in part");
}

#[test]
fn statistics_that_replicas_send_are_checked() {
    let refused = |change: &dyn Fn(&mut Vec<Vec<Tensor>>), said: &str| {
        let (mut engine, buckets, mut statistics) = handed_to_first();
        change(&mut statistics);
        let error = engine.reduce(1, buckets, statistics).unwrap_err().to_string();
        assert!(
            error.contains("statistics of norms that replicas sent") && error.contains(said),
            "{error}"
        );
    };
    refused(&|all| all.push(Vec::new()), "0 tensors for 1 norms");
    refused(&|all| drop(all[0].pop()), "1 tensors for 1 norms");
    refused(&|all| all[0][0] = Tensor::from_slice(&[-1i64]), "numbers of microbatches");
    refused(&|all| all[0][0] = Tensor::from_slice(&[0.5f32]), "numbers of microbatches");
    refused(&|all| all[0][0] = Tensor::from_slice(&[0i64]), "came twice");
    refused(&|all| all[0][0] = Tensor::from_slice(&[2i64]), "missing");
    refused(&|all| all[0][0] = Tensor::from_slice(&[1i64, 2]), "expected Float [4, 3]");
    refused(&|all| all[0][1] = all[0][1].to_kind(Kind::Double), "got Double");
}
