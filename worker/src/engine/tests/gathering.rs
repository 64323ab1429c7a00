//! Sharded parameters: each replica stores its shard, and has the rest only between the all-gather
//! and the reshard.

use super::*;
use pipeline::replicas::{buckets, BucketBytes, ShardId, Sharding};
use tensor::memory::StorageCounter;

const YAML: &str = "model: small
inputs: {x: [batch, 40]}
layers:
  - Linear: {in_features: 40, out_features: 30}
  - ReLU
  - Linear: {in_features: 30, out_features: 50}
";

/// Buckets of one parameter each, more or less.
const BYTES: BucketBytes = BucketBytes { first: 1024, other: 1024 };

/// A slice for every bucket.
type Part = Vec<(u32, Vec<Tensor>)>;

fn replica(replica: u16) -> Engine {
    let model = StageConfig {
        shard_id: Some(ShardId { replica, replicas: 2 }),
        shards_gradients: true,
        shards_parameters: true,
        ..alone()
    };
    build(model).unwrap()
}

pub(super) fn alone() -> StageConfig {
    let model = whole(&graph(YAML), true);
    let spec = pipeline::plan::Plan::new(
        &graph(YAML),
        &pipeline::Cuts::Auto,
        1,
        pipeline::Placement::Plain,
    )
    .unwrap();
    StageConfig { buckets: buckets(&spec.stages[0], BYTES, Some(Sharding::Parameters)), ..model }
}

fn part(engine: &Engine) -> Part {
    let mut part = Vec::new();
    engine
        .emit_shard(|bucket, slices| {
            part.push((bucket, slices));
            Ok(())
        })
        .unwrap();
    part
}

/// The slices that a replica receives from the other one.
fn shared(from: u16, part: Part) -> Vec<Vec<Vec<Tensor>>> {
    part.into_iter()
        .map(|(_, slices)| match from {
            0 => vec![slices, Vec::new()],
            _ => vec![Vec::new(), slices],
        })
        .collect()
}

fn bytes_of_parameters(engine: &Engine) -> u64 {
    let mut held = StorageCounter::default();
    engine.trained_params().for_each(|(_, tensor)| held.count(tensor));
    held.bytes()
}

#[test]
fn a_replica_has_its_part_alone_until_it_gathers_the_rest() {
    let (mut first, mut second) = (replica(0), replica(1));
    let whole = build(StageConfig { shard_id: None, ..alone() }).unwrap();
    let all = bytes_of_parameters(&whole);
    assert!(bytes_of_parameters(&first) < all / 100, "only sizes are left");
    let of_first = part(&first);
    let kept: i64 = of_first
        .iter()
        .chain(&part(&second))
        .flat_map(|(_, slices)| slices)
        .map(|t| t.numel() as i64)
        .sum();
    assert_eq!(kept as u64 * 4, all, "each element is kept once");

    first.all_gather(shared(1, part(&second))).unwrap();
    second.all_gather(shared(0, of_first)).unwrap();
    for engine in [&first, &second] {
        assert_eq!(bytes_of_parameters(engine), all);
        for ((name, here), (_, there)) in engine.trained_params().zip(whole.trained_params()) {
            assert_eq!(here, there, "{name}");
        }
    }
    let x = normal("x", &[3, 40]);
    let expected = build(alone_without_shards()).unwrap().forward(&eval(), vec![x.copy()]).unwrap();
    assert_eq!(first.forward(&eval(), vec![x.copy()]).unwrap(), expected);

    first.reshard().unwrap();
    assert!(bytes_of_parameters(&first) < all / 100);
    assert_eq!(
        first.state().unwrap_err().to_string(),
        first.forward(&eval(), vec![x]).unwrap_err().to_string()
    );
}

pub(super) fn alone_without_shards() -> StageConfig {
    StageConfig { buckets: Vec::new(), ..alone() }
}

#[test]
fn weights_are_loaded_whole_and_kept_in_part() {
    let (mut first, mut second) = (replica(0), replica(1));
    let state = |engine: &Engine| engine.state().unwrap();
    let other = build(StageConfig { seed: 12, ..alone_without_shards() }).unwrap();
    for engine in [&mut first, &mut second] {
        engine.load_state(state(&other)).unwrap();
    }
    first.all_gather(shared(1, part(&second))).unwrap();
    for ((name, here), (_, there)) in state(&first).iter().zip(&state(&other)) {
        assert_eq!(here, there, "{name}");
    }
}

#[test]
fn slices_are_kept_in_part() {
    let (mut first, mut second) = (replica(0), replica(1));
    let other = build(StageConfig { seed: 12, ..alone_without_shards() }).unwrap();
    let other = other.state().unwrap();
    for engine in [&mut first, &mut second] {
        for (name, tensor) in &other {
            let (flat, count) = (tensor.flatten(0, -1), tensor.numel() as i64);
            for start in (0..count).step_by(97) {
                let values = flat.slice(0, start, count.min(start + 97), 1);
                engine.load_slice(name, start.cast_unsigned(), &values).unwrap();
            }
        }
    }
    first.all_gather(shared(1, part(&second))).unwrap();
    for ((name, here), (_, there)) in first.state().unwrap().iter().zip(&other) {
        assert_eq!(here, there, "{name}");
    }
}

#[test]
fn passes_over_a_part_of_the_parameters_are_refused() {
    let (mut first, second) = (replica(0), replica(1));
    let x = normal("x", &[3, 40]);
    let refused = first.forward(&train(0), vec![x.copy()]).unwrap_err().to_string();
    assert!(refused.contains("only this replica's shard of the parameters is here"), "{refused}");
    first.all_gather(shared(1, part(&second))).unwrap();
    first.forward(&train(0), vec![x]).unwrap();
    first.reshard().unwrap();
    let refused =
        first.backward(key(0), vec![vec![normal("g", &[3, 50])]]).unwrap_err().to_string();
    assert!(refused.contains("only this replica's shard of the parameters is here"), "{refused}");
}

#[test]
fn what_the_others_share_is_checked() {
    let (mut first, second) = (replica(0), replica(1));
    let good = || shared(1, part(&second));
    let mut short = good();
    short.pop();
    let mut of_me = good();
    of_me[0].swap(0, 1);
    let mut other_size = good();
    other_size.iter_mut().flatten().flatten().for_each(|tensor| *tensor = tensor.narrow(0, 0, 1));
    for wrong in [short, of_me, other_size] {
        first.all_gather(wrong).unwrap_err();
        first.state().unwrap_err();
    }
    first.all_gather(good()).unwrap();
}
