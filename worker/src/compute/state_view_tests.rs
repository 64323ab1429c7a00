//! Views alone, and those of a worker that trains.

use super::*;
use crate::compute::payloads::to_payload;
use crate::compute::stage_compute::StageCompute;
use layerspec::LayerGraph;
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::Mode;
use pipeline::replicas::BucketBytes;
use pipeline::task::{BuildSettings, LossTask, Outcome, Task, Update};
use pipeline::watch::FiniteCheck;
use pipeline::{
    hash_tensor, Cuts, Determinism, Initialization, LoadContent, LossSpec, OptimizerSpec,
    Placement, Plan, StateForm, StateName,
};
use runtime::Compute;
use std::collections::BTreeMap;
use tch::Kind;
use tensor::payload;

/// All parameters and running statistics have more than the least bytes. The first weight has two
/// slices.
const MODEL: &str = "
model: norm
inputs: {x: [batch, 64]}
layers:
  - Linear: {in_features: 64, out_features: 20000}
  - BatchNorm1d: {num_features: 20000}
";

const STAGE: StageId = StageId(0);

fn numbers() -> Tensor {
    Tensor::arange(10, (Kind::Float, Device::Cpu))
}

fn point() -> SnapshotPoint {
    SnapshotPoint::now(Device::Cpu, TaskLocation::default()).unwrap()
}

/// Views of at most four numbers each.
fn open(views: &mut OpenViews, tensor: &Tensor) -> Vec<(String, TaskTensor)> {
    views.open_slices("0.weight", tensor, 16, &point()).unwrap()
}

fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    payload::to_bytes(tensor).unwrap().to_vec()
}

/// The bytes of each tensor, of its slices one after the other.
fn joined(sent: &[(String, TaskTensor)]) -> BTreeMap<String, Vec<u8>> {
    let mut all: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (name, tensor) in sent {
        let StateName { optimizer, name, .. } = StateName::parse(name);
        let bytes = all.entry(format!("{optimizer} {name}")).or_default();
        bytes.extend_from_slice(&tensor.to_host().unwrap().bytes);
    }
    all
}

fn only(sent: &[(String, TaskTensor)]) -> Vec<u8> {
    joined(sent).into_values().flatten().collect()
}

#[test]
fn views_have_the_names_and_shapes_of_slices() {
    let mut views = OpenViews::default();
    let sent = open(&mut views, &numbers().reshape([5, 2]));
    let names: Vec<&str> = sent.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["slice/0.weight[0]", "slice/0.weight[4]", "slice/0.weight[8]"]);
    let shapes = sent.iter().map(|(_, tensor)| tensor.to_host().unwrap().meta.shape);
    assert_eq!(shapes.collect::<Vec<_>>(), [[4], [4], [2]]);
}

#[test]
fn without_an_update_no_copy_is_kept() {
    let mut views = OpenViews::default();
    let mut tensor = numbers();
    let sent = open(&mut views, &tensor);
    assert_eq!(only(&sent), bytes_of(&tensor));
    let _same = tensor.f_add_scalar_(1.0).unwrap();
    assert_eq!(only(&sent), bytes_of(&tensor), "read in place once more");
}

#[test]
fn an_update_does_not_show_after_a_copy() {
    let mut views = OpenViews::default();
    let mut tensor = numbers();
    let before = bytes_of(&tensor);
    let sent = open(&mut views, &tensor);
    views.copy_rest();
    assert!(memory::is_uniquely_owned(&tensor), "the views let go of it");
    let _same = tensor.f_add_scalar_(1.0).unwrap();
    assert_eq!(only(&sent), before);
    views.copy_rest();
    assert_eq!(only(&sent), before, "nothing is copied twice");
}

#[test]
fn a_slice_that_was_sent_is_not_copied() {
    let mut views = OpenViews::default();
    let tensor = numbers();
    let mut sent = open(&mut views, &tensor);
    let (_, last) = sent.pop().unwrap();
    drop(sent);
    views.forget_closed();
    assert_eq!(views.0.len(), 1);
    drop(last);
    assert!(memory::is_uniquely_owned(&tensor));
    views.copy_rest();
    assert!(views.0.is_empty());
}

/// The thread that sends copies while updates go on. What it gets is the state between two updates.
#[test]
fn an_update_waits_for_a_copy_that_is_being_made() {
    let mut views = OpenViews::default();
    let mut tensor = Tensor::zeros([1 << 16], (Kind::Float, Device::Cpu));
    let (sender, opened) = std::sync::mpsc::channel::<(f32, Vec<(String, TaskTensor)>)>();
    let sending = std::thread::spawn(move || {
        for (value, sent) in opened {
            let expected: Vec<u8> = value.to_le_bytes().repeat(1 << 16);
            assert!(only(&sent) == expected, "an update shows in the state before it");
        }
    });
    for step in 0..200 {
        let sent = views.open_slices("0.weight", &tensor, 1 << 14, &point()).unwrap();
        sender.send((step as f32, sent)).unwrap();
        views.copy_rest();
        let _same = tensor.f_add_scalar_(1.0).unwrap();
    }
    drop(sender);
    sending.join().unwrap();
}

/// The hash of each whole tensor, as a snapshot of hashes has it.
fn hashes_of(tensors: &[(String, TaskTensor)]) -> BTreeMap<String, Vec<u8>> {
    let hash = |(name, tensor): &(String, TaskTensor)| {
        let Payload { meta, bytes } = tensor.to_host().unwrap();
        (name.clone(), TaskTensor::from(hash_payload(hash_tensor(&meta, &bytes))))
    };
    joined(&tensors.iter().map(hash).collect::<Vec<_>>())
}

#[test]
fn a_hash_is_that_of_the_tensor_when_its_view_was_opened() {
    let mut views = OpenViews::default();
    let mut tensor = numbers();
    let expected = {
        let whole = to_payload(&tensor).unwrap();
        hash_tensor(&whole.meta, &whole.bytes)
    };
    let early = views.open_hash(&tensor, &point()).unwrap();
    assert_eq!(early.to_host().unwrap().bytes, expected[..]);
    assert!(memory::is_uniquely_owned(&tensor), "a hash is kept once it is made");
    let late = views.open_hash(&tensor, &point()).unwrap();
    assert!(!memory::is_uniquely_owned(&tensor));
    views.copy_rest();
    assert!(memory::is_uniquely_owned(&tensor), "the views let go of it");
    let _same = tensor.f_add_scalar_(1.0).unwrap();
    for view in [early, late] {
        let TaskTensor::Device(view) = view else { panic!("not a view") };
        let Payload { meta, bytes } = view.to_host().unwrap();
        assert_eq!((meta, view.meta()), (hash_meta(), hash_meta()));
        assert_eq!(bytes, expected[..]);
    }
}

#[test]
fn small_tensors_and_other_layouts_are_not_viewed() {
    let fits = |tensor: &Tensor| can_be_viewed(tensor, &meta_of(tensor).unwrap());
    let large = Tensor::zeros([128, 128], (Kind::Float, Device::Cpu));
    assert!(fits(&large));
    assert!(!fits(&large.transpose(0, 1)));
    assert!(!fits(&large.narrow(0, 0, 127)));
    assert!(!fits(&Tensor::zeros([0, 3], (Kind::Float, Device::Cpu))));
}

/// A worker with the whole model, after one step.
fn trained() -> StageCompute {
    let graph = LayerGraph::from_yaml(MODEL, "test.yaml").unwrap();
    let plan = Plan::new(&graph, &Cuts::Auto, 1, Placement::Plain).unwrap();
    let mut compute = StageCompute::new(Device::Cpu);
    run(
        &mut compute,
        Task::Build {
            stages: plan.stages.clone(),
            settings: BuildSettings {
                buckets: BucketBytes::default(),
                sharding: None,
                shard_ids: BTreeMap::new(),
                seed: 7,
                determinism: Determinism::default(),
                initialization: Initialization::default(),
            },
        },
    );
    run(&mut compute, Task::SetOptimizer(OptimizerSpec::adam(0.1)));
    passes(&mut compute, 0);
    step(&mut compute);
    compute
}

fn run(compute: &mut StageCompute, task: Task<TaskTensor>) -> Outcome<TaskTensor> {
    compute.prepare(&task);
    compute.run(task, &mut |_| {}).unwrap()
}

/// Forward and backward of a batch.
fn passes(compute: &mut StageCompute, batch: u64) {
    let key = MicrobatchKey { batch, index: 0 };
    let values = |count: i64| {
        let angles = Tensor::arange(4 * count, (Kind::Float, Device::Cpu)) * 0.37 + batch as f64;
        TaskTensor::from(to_payload(&angles.sin().reshape([4, count])).unwrap())
    };
    let target = values(20000);
    let spec = LossSpec::MSELoss;
    let loss = LossTask { output: 0, spec, weight: 1.0, target, likeliest: false };
    run(
        compute,
        Task::Forward {
            stage: STAGE,
            key,
            step: batch,
            mode: Mode::Train,
            kv_cache: None,
            inputs: vec![values(64)],
            export: Vec::new(),
            last_position: None,
            loss: Some(loss),
            defer_statistics: false,
            finite: FiniteCheck::Off,
        },
    );
    let grads = vec![Vec::new()];
    run(compute, Task::Backward { stage: STAGE, key, grads, input_only: false, leaf: None });
}

fn step(compute: &mut StageCompute) {
    let update = Update { lr: 0.1, scale: 1.0, clip: 1.0, skip: false };
    run(compute, Task::OptimStep { stage: STAGE, update, tied: Vec::new(), health: false });
}

fn snapshot(compute: &mut StageCompute, form: StateForm) -> Vec<(String, TaskTensor)> {
    let task = Task::Snapshot { parameters: vec![STAGE], optimizer: vec![STAGE], form };
    match run(compute, task) {
        Outcome::State { heads, tensors } => {
            let is_hash = |(_, meta): &(String, TensorMeta)| *meta == hash_meta();
            assert_eq!(heads.iter().all(is_hash), form == StateForm::Hashes);
            tensors
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_snapshot_has_the_state_before_later_passes_and_steps() {
    let mut compute = trained();
    let before = joined(&snapshot(&mut compute, StateForm::Tensors));
    let sent = snapshot(&mut compute, StateForm::Slices);
    let viewed = sent.iter().filter(|(_, tensor)| matches!(tensor, TaskTensor::Device(_)));
    // The weight has two slices, and its bias and the norm's parameters one each. So do both
    // moments of each. The norm's buffers are copied.
    assert_eq!(viewed.count(), 3 * (2 + 3));
    passes(&mut compute, 1);
    assert_eq!(compute.views.0.len(), 15, "passes end no view");
    assert!(joined(&sent) == before, "after passes");
    step(&mut compute);
    assert!(compute.views.0.is_empty());
    assert!(joined(&sent) == before, "after the step");
    let after = joined(&snapshot(&mut compute, StateForm::Tensors));
    let same = before.iter().filter(|(name, bytes)| after.get(*name) == Some(*bytes));
    assert_eq!(same.count(), 0, "every tensor has changed");
}

#[test]
fn hashes_are_those_of_the_state_before_later_passes_and_steps() {
    let mut compute = trained();
    let before = hashes_of(&snapshot(&mut compute, StateForm::Tensors));
    let sent = snapshot(&mut compute, StateForm::Hashes);
    // Of the parameters of both layers, and of both moments of each.
    assert_eq!(compute.views.0.len(), 3 * 4);
    passes(&mut compute, 1);
    assert_eq!(compute.views.0.len(), 12, "passes end no view");
    let (early, _) = sent.split_at(3);
    early.iter().for_each(|(_, tensor)| drop(tensor.to_host().unwrap()));
    step(&mut compute);
    assert!(compute.views.0.is_empty());
    assert_eq!(joined(&sent), before);
    let after = joined(&snapshot(&mut compute, StateForm::Hashes));
    let same = before.iter().filter(|(name, hash)| after.get(*name) == Some(*hash));
    assert_eq!(same.count(), 0, "every tensor has changed");
}

#[test]
fn small_tensors_and_buffers_are_hashed_at_once() {
    let mut compute = trained();
    let sent = snapshot(&mut compute, StateForm::Hashes);
    let at_once = sent.iter().filter(|(_, tensor)| matches!(tensor, TaskTensor::Host(_)));
    let mut names: Vec<&str> = at_once.map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "1.num_batches_tracked",
        "1.running_mean",
        "1.running_var",
        "optimizer/0.bias.step",
        "optimizer/0.weight.step",
        "optimizer/1.bias.step",
        "optimizer/1.weight.step",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_snapshot_has_the_state_before_it_is_replaced() {
    let mut compute = trained();
    let before = joined(&snapshot(&mut compute, StateForm::Tensors));
    let sent = snapshot(&mut compute, StateForm::Slices);
    let zeros = Tensor::zeros([20000, 64], (Kind::Float, Device::Cpu));
    let zeros = TaskTensor::from(to_payload(&zeros).unwrap());
    let tensors = vec![("0.weight".to_string(), zeros)];
    run(&mut compute, Task::Load { tensors, content: LoadContent::Part });
    run(&mut compute, Task::SetOptimizer(OptimizerSpec::sgd(0.1)));
    assert!(joined(&sent) == before);
    let again = snapshot(&mut compute, StateForm::Slices);
    // The run is over, and what it sent last is still read.
    drop(compute);
    let weight = &joined(&again)["false 0.weight"];
    assert!(weight.len() == 4 * 20000 * 64 && weight.iter().all(|byte| *byte == 0));
}
