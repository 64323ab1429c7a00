//! Weights and optimizer state by name.

use super::models::{CONV, RESIDUAL, TEXT};
use super::*;

fn steps(engine: &mut Engine, first: u32, count: u32) -> Vec<f32> {
    let step = |index| {
        let pass = train(index);
        let prediction = engine.forward(&pass, vec![normal("x", &[4, 3])]).unwrap().remove(0);
        let loss = engine
            .loss(pass.key, &mse(&prediction, &normal("y", &[4, 2]), 1.0), Mode::Train)
            .unwrap();
        engine.backward(pass.key, vec![vec![]]).unwrap();
        optim_step(engine, 0.1).unwrap();
        loss.numbers().unwrap()[0] as f32
    };
    (first..first + count).map(step).collect()
}

#[test]
fn names_are_pytorchs() {
    let names = |yaml: &str| {
        engine(yaml).state().unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(CONV)[..5], ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean"]);
    assert_eq!(names(TEXT), ["embedding.weight", "2.weight", "2.bias", "5.weight", "5.bias"]);
}

#[test]
fn the_seed_and_the_names_decide_the_start() {
    let (first, again) = (engine(RESIDUAL).state().unwrap(), engine(RESIDUAL).state().unwrap());
    assert_same(&first, &again, "two builds");
    let mut other = whole(&graph(RESIDUAL), false);
    other.seed = 12;
    let other = build(other).unwrap().state().unwrap();
    assert!(first.iter().zip(&other).all(|((_, one), (_, two))| !one.equal(two)));
    assert!(!first[2].1.equal(&first[4].1), "two layers of one shape start alike");
    let bound = 1.0 / 17f64.sqrt();
    let weight = &first[2].1;
    assert!(
        weight.abs().max().double_value(&[]) <= bound
            && weight.abs().max().double_value(&[]) > 0.8 * bound
    );
}

#[test]
fn a_state_goes_out_and_comes_in() {
    let mut trained = engine(RESIDUAL);
    trained.set_optimizer(OptimizerSpec::sgd(0.1));
    steps(&mut trained, 0, 3);
    let state = trained.state().unwrap();
    let mut fresh = engine(RESIDUAL);
    fresh.load_state(trained.state().unwrap()).unwrap();
    assert_same(&fresh.state().unwrap(), &state, "loaded");
    fresh.set_optimizer(OptimizerSpec::sgd(0.1));
    assert_eq!(steps(&mut fresh, 3, 3), steps(&mut trained, 3, 3));
    assert_same(
        &state,
        &state.iter().map(|(name, tensor)| (name.clone(), tensor.copy())).collect::<Vec<_>>(),
        "kept",
    );
}

#[test]
fn a_state_is_a_copy() {
    let mut engine = engine(RESIDUAL);
    engine.set_optimizer(OptimizerSpec::sgd(0.1));
    let before = engine.state().unwrap();
    steps(&mut engine, 0, 1);
    assert!(!before[0].1.equal(&engine.state().unwrap()[0].1));
}

#[test]
fn every_problem_of_a_state_is_listed_and_nothing_is_changed() {
    let mut engine = engine(RESIDUAL);
    let before = engine.state().unwrap();
    let mut wrong = engine.state().unwrap();
    wrong[0].1 = Tensor::zeros([1, 2], (Kind::Float, Device::Cpu));
    wrong[1].1 = wrong[1].1.to_kind(Kind::Double);
    wrong[2].0 = "2.wait".into();
    let error = engine.load_state(wrong).unwrap_err();
    let EngineError::StateMismatch { problems } = &error else { panic!("{error}") };
    assert_eq!(
        problems[..],
        [
            "0.weight: expected float32 [17, 3], got float32 [1, 2]",
            "0.bias: expected float32 [17], got float64 [17]",
            "2.weight: missing",
            "2.wait: unexpected, the stage has no such tensor",
        ]
    );
    assert_same(&engine.state().unwrap(), &before, "after a refused state");
}

#[test]
fn tied_weights_load_under_any_of_their_names() {
    let mut engine = engine(TEXT);
    let mut state = engine.state().unwrap();
    let weight = normal("w", &[13, 8]);
    state[0] = ("head.weight".into(), weight.copy());
    engine.load_state(state).unwrap();
    assert!(engine.state().unwrap()[0].1.equal(&weight));

    let mut both = engine.state().unwrap();
    both.push(("head.weight".into(), weight.copy()));
    engine.load_state(both).unwrap();
    let mut differing = engine.state().unwrap();
    differing.push(("head.weight".into(), weight + 1.0));
    let error = engine.load_state(differing).unwrap_err().to_string();
    assert!(error.contains("head.weight: differs from embedding.weight"), "{error}");
}

#[test]
fn the_optimizers_state_can_be_seen() {
    let mut engine = engine(RESIDUAL);
    engine.set_optimizer(OptimizerSpec::adam(1e-3));
    assert!(whole_state(&engine).is_empty());
    steps(&mut engine, 0, 2);
    let state = whole_state(&engine);
    let names: Vec<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..4],
        ["0.weight.step", "0.weight.exp_avg", "0.weight.exp_avg_sq", "0.bias.step"]
    );
    assert_eq!(state[0].1.double_value(&[]), 2.0);
    assert_eq!(state[1].1.size(), [17, 3]);

    engine.set_optimizer(OptimizerSpec::sgd_momentum(0.1, 0.9));
    steps(&mut engine, 2, 1);
    assert_eq!(whole_state(&engine)[0].0, "0.weight.momentum_buffer");
}

#[test]
fn slices_of_a_state_are_the_whole() {
    let mut engine = engine(RESIDUAL);
    let before = engine.state().unwrap();
    let changed: Vec<(String, Tensor)> =
        before.iter().map(|(name, tensor)| (name.clone(), tensor * 0.5 + 1.0)).collect();
    for (name, tensor) in &changed {
        let (flat, count) = (tensor.flatten(0, -1), tensor.numel() as i64);
        for start in (0..count).step_by(7) {
            let end = count.min(start + 7);
            let values = flat.slice(0, start, end, 1);
            engine.load_slice(name, start.cast_unsigned(), &values).unwrap();
        }
    }
    assert_same(&engine.state().unwrap(), &changed, "after all slices");
    let values = |kind: Kind, sizes: &[i64]| Tensor::zeros(sizes, (kind, Device::Cpu));
    for (name, start, values, expected) in [
        ("0.weight", 50, values(Kind::Float, &[2]), "a slice of 51 elements of float32, got"),
        ("0.weight", u64::MAX, values(Kind::Float, &[1]), "from 18446744073709551615"),
        ("0.weight", 0, values(Kind::Double, &[2]), "got float64 [2] from 0"),
        ("0.weight", 0, values(Kind::Float, &[1, 2]), "got float32 [1, 2] from 0"),
        ("0.wait", 0, values(Kind::Float, &[2]), "the stage has no such tensor"),
    ] {
        let error = engine.load_slice(name, start, &values).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_same(&engine.state().unwrap(), &changed, "after refused slices");
}
