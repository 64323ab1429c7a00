//! Optimizer state that is loaded in parts.

use super::gathering::{alone, alone_without_shards};
use super::*;
use pipeline::replicas::{shard, Bucket, ShardId};

const ADAM: OptimizerSpec = OptimizerSpec::adam(1e-2);
const SGD: OptimizerSpec = OptimizerSpec::sgd_momentum(1e-2, 0.9);

/// The stage on one replica: without shards, or with the shard of this one of two replicas, of the
/// optimizer's state alone or of parameters, too.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Alone,
    Shard { replica: u16, of_parameters: bool },
}

fn layouts() -> Vec<Layout> {
    let shards = [0, 1].into_iter().flat_map(|replica| {
        [false, true].map(|of_parameters| Layout::Shard { replica, of_parameters })
    });
    std::iter::once(Layout::Alone).chain(shards).collect()
}

fn fresh(layout: Layout, optimizer: OptimizerSpec) -> Engine {
    let (shard_id, of_parameters) = match layout {
        Layout::Alone => (None, false),
        Layout::Shard { replica, of_parameters } => {
            (Some(ShardId { replica, replicas: 2 }), of_parameters)
        }
    };
    let mut engine = build(StageConfig {
        shard_id,
        shards_gradients: of_parameters,
        shards_parameters: of_parameters,
        ..alone()
    })
    .unwrap();
    engine.set_optimizer(optimizer);
    engine
}

/// A state of every parameter, whole. It begins in the middle of a training.
fn whole_states(kinds: &[&str]) -> Vec<(String, Tensor)> {
    let model = build(alone_without_shards()).unwrap();
    let mut states = Vec::new();
    for (param, values) in model.trained_params() {
        for kind in kinds {
            let name = format!("{param}.{kind}");
            let tensor = match *kind {
                "step" => Tensor::from(3.0f32),
                _ => normal(&name, &values.size()).abs(),
            };
            states.push((name, tensor));
        }
    }
    states
}

/// The states in slices of odd sizes, some of them whole, in an order without order.
fn pieces(states: &[(String, Tensor)]) -> Vec<(String, Option<u64>, Tensor)> {
    let mut pieces = Vec::new();
    let mut sizes = [97i64, 1, 255, 33, 301].into_iter().cycle();
    for (number, (name, tensor)) in states.iter().enumerate() {
        if tensor.dim() == 0 || number % 5 == 2 {
            pieces.push((name.clone(), None, tensor.copy()));
            continue;
        }
        let (flat, count) = (tensor.flatten(0, -1), tensor.numel() as i64);
        let mut start = 0i64;
        while start < count {
            let end = count.min(start + sizes.next().unwrap());
            let values = flat.slice(0, start, end, 1);
            pieces.push((name.clone(), Some(start.cast_unsigned()), values));
            start = end;
        }
    }
    let mut numbered: Vec<_> = pieces.into_iter().enumerate().collect();
    numbered.sort_by_key(|(number, _)| number * 7919 % 1009);
    numbered.into_iter().map(|(_, piece)| piece).collect()
}

/// The optimizer's state on this replica. A shard's name ends with its first element.
fn kept(engine: &Engine) -> Vec<(String, Tensor)> {
    let state = engine.optimizer_state(OptimizerStateScope::All).unwrap().into_iter();
    state
        .map(|OptimizerTensor { name, start, tensor }| (format!("{name} {start:?}"), tensor))
        .collect()
}

/// The parameters that this replica updates.
fn updated(engine: &Engine) -> Vec<(String, Tensor)> {
    let all = engine.params.params().all.iter().enumerate();
    let view = |index| engine.params.update_view(index).unwrap().copy();
    all.map(|(index, param)| (param.name.clone(), view(index))).collect()
}

/// A step with gradients that depend only on the layout.
fn step(engine: &mut Engine) {
    let id = engine.stage().shard_id.unwrap_or(ShardId { replica: 0, replicas: 1 });
    let sums = |bucket: &Bucket, replica: u16| -> Vec<Tensor> {
        if replica != id.replica {
            return Vec::new();
        }
        let slices = shard(bucket, replica, id.replicas).into_iter();
        slices
            .map(|slice| {
                let count = (slice.elements.end - slice.elements.start) as i64;
                normal(&format!("g {:?} {:?}", bucket.uses, slice.elements), &[count])
            })
            .collect()
    };
    let of_bucket = |bucket: &Bucket| -> Vec<Vec<Tensor>> {
        (0..id.replicas).map(|replica| sums(bucket, replica)).collect()
    };
    let buckets: Vec<Vec<Vec<Tensor>>> = engine.stage().buckets.iter().map(of_bucket).collect();
    engine.reduce(1, buckets, Vec::new()).unwrap();
    optim_step(engine, 1e-2).unwrap();
}

#[test]
fn parts_of_an_optimizers_state_are_the_whole() {
    let kinds: [(OptimizerSpec, &[&str]); 2] =
        [(ADAM, &["step", "exp_avg", "exp_avg_sq"]), (SGD, &["momentum_buffer"])];
    for (optimizer, kinds) in kinds {
        let states = whole_states(kinds);
        for layout in layouts() {
            let what = format!("{optimizer:?} {layout:?}");
            let mut whole = fresh(layout, optimizer);
            let copies = states.iter().map(|(name, tensor)| (name.clone(), tensor.copy()));
            whole.load_optimizer_state(copies.collect()).unwrap();
            let mut in_parts = fresh(layout, optimizer);
            for (name, start, values) in pieces(&states) {
                in_parts.load_optimizer_part(&name, start, &values).unwrap();
            }
            assert!(!kept(&whole).is_empty(), "{what}");
            assert_same(&kept(&in_parts), &kept(&whole), &what);
            for engine in [&mut whole, &mut in_parts] {
                step(engine);
                step(engine);
            }
            assert_same(&updated(&in_parts), &updated(&whole), &what);
            assert_same(&kept(&in_parts), &kept(&whole), &what);
            let mut without = fresh(layout, optimizer);
            step(&mut without);
            step(&mut without);
            let same = updated(&without)
                .iter()
                .zip(&updated(&whole))
                .all(|((_, one), (_, two))| one.equal(two));
            assert!(!same, "the state makes no difference: {what}");
        }
    }
}

#[test]
fn state_that_did_not_come_is_zero() {
    let mut engine = fresh(Layout::Alone, ADAM);
    let ones = Tensor::ones([2], (Kind::Float, Device::Cpu));
    engine.load_optimizer_part("0.bias.exp_avg", Some(28), &ones).unwrap();
    let state = whole_state(&engine);
    let names: Vec<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["0.bias.step", "0.bias.exp_avg", "0.bias.exp_avg_sq"]);
    assert_eq!(state[0].1.size(), [0i64; 0]);
    assert_eq!((state[1].1.size(), state[2].1.size()), (vec![30], vec![30]));
    let sums: Vec<f64> =
        state.iter().map(|(_, tensor)| tensor.sum(Kind::Float).double_value(&[])).collect();
    assert_eq!(sums, [0.0, 2.0, 0.0]);
    assert!(state[1].1.slice(0, 28, 30, 1).equal(&ones));
}

#[test]
fn parts_that_do_not_fit_change_nothing() {
    let numbers = |kind: Kind, size: &[i64]| Tensor::ones(size, (kind, Device::Cpu));
    let of = |size: &[i64]| numbers(Kind::Float, size);
    let wrong = [
        ("0.weight.foo", None, of(&[30, 40]), "0.weight: foo is unexpected"),
        ("0.weight.momentum_buffer", None, of(&[30, 40]), "momentum_buffer is unexpected"),
        ("0.weight.exp_avg", None, of(&[40, 30]), "expected float32 [30, 40] or a slice of it"),
        ("0.weight.exp_avg", None, of(&[1200]), "got float32 [1200]"),
        ("0.weight.exp_avg", None, numbers(Kind::Double, &[30, 40]), "got float64 [30, 40]"),
        ("0.weight.exp_avg", Some(0), numbers(Kind::Half, &[2]), "got float16 [2] from 0"),
        ("0.weight.exp_avg", Some(0), of(&[1, 2]), "got float32 [1, 2] from 0"),
        ("0.weight.exp_avg", Some(0), of(&[]), "got float32 [] from 0"),
        ("0.weight.exp_avg", Some(1199), of(&[2]), "got float32 [2] from 1199"),
        ("0.weight.exp_avg", Some(1u64 << 63), of(&[2]), "from 9223372036854775808"),
        ("0.weight.exp_avg", Some((1u64 << 63) - 1), of(&[2]), "from 9223372036854775807"),
        ("0.weight.exp_avg", Some(u64::MAX), of(&[2]), "from 18446744073709551615"),
        ("0.weight.step", None, of(&[1]), "step: expected float32 [], got float32 [1]"),
        ("0.weight.step", Some(0), of(&[1]), "step: expected float32 [], got float32 [1] from 0"),
        ("0.wait.exp_avg", None, of(&[30, 40]), "0.wait: no such parameter"),
        ("weight", None, of(&[30, 40]), "weight: no such parameter"),
    ];
    for layout in layouts() {
        let mut begun = fresh(layout, ADAM);
        begun.load_optimizer_state(whole_states(&["step", "exp_avg", "exp_avg_sq"])).unwrap();
        for mut engine in [fresh(layout, ADAM), begun] {
            let before = kept(&engine);
            for (name, start, values, expected) in &wrong {
                let error = engine.load_optimizer_part(name, *start, values).unwrap_err();
                assert!(error.to_string().contains(*expected), "{expected}: {error}");
            }
            assert_same(&kept(&engine), &before, &format!("{layout:?}"));
        }
    }
}

#[test]
fn an_optimizer_without_state_takes_none() {
    let values = Tensor::ones([30], (Kind::Float, Device::Cpu));
    let load = |engine: &mut Engine| {
        engine.load_optimizer_part("0.bias.momentum_buffer", None, &values).unwrap_err()
    };
    let mut engine = fresh(Layout::Alone, OptimizerSpec::sgd(0.1));
    let error = load(&mut engine).to_string();
    assert!(error.contains("0.bias: momentum_buffer is unexpected"), "{error}");
    assert!(whole_state(&engine).is_empty());
    let mut engine = build(alone()).unwrap();
    assert_eq!(load(&mut engine), EngineError::from(SequenceError::NoOptimizer));
}
