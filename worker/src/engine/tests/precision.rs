//! Products in bfloat16: compared with `torch.autocast`, in other orders, and the values that stay
//! float32.

use super::pytorch::{cases, model, of, run, BackwardVariant, Named};
use super::*;
use layerspec::Precision;
use serde_json::Value as Json;
use std::path::PathBuf;

/// Rounding changes a number by up to 1/256 of it. Sums of products of rounded numbers differ by
/// little more than that. PyTorch also rounds between layers, which BossMan does not.
const TOLERANCE: f64 = 0.02;

fn recorded(name: &str) -> Option<Named> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../tests/autocast/{name}.safetensors"));
    path.exists().then(|| Tensor::read_safetensors(&path).unwrap().into_iter().collect())
}

/// The cases that tools/autocast_oracle.py has recorded.
fn recorded_cases() -> impl Iterator<Item = (Json, Named)> {
    cases().into_iter().filter_map(|case| {
        let recorded = recorded(case["name"].as_str().unwrap())?;
        Some((case, recorded))
    })
}

fn variant(halves: bool, recompute: Recompute) -> BackwardVariant {
    BackwardVariant { halves, recompute, precision: Precision::Bf16 }
}

#[test]
fn layers_compute_what_they_do_under_autocast() {
    let mut count = 0;
    for (case, recorded) in recorded_cases() {
        let name = case["name"].as_str().unwrap();
        let found = run(&model(&case), &case, &recorded, variant(false, Recompute::None));
        for sort in ["output", "input_grad", "param_grad"] {
            for (of_it, expected) in of(&recorded, sort) {
                let found = &found[&format!("{sort}.{of_it}")];
                assert_eq!(found.kind(), Kind::Float, "{name}: {sort}.{of_it}");
                let expected = expected.to_kind(Kind::Float);
                let off = (found - &expected).abs().max().double_value(&[]);
                let largest = expected.abs().max().double_value(&[]);
                println!("{name:28} {sort}.{of_it:32} {:.4}", off / largest);
                assert!(
                    off <= TOLERANCE * largest,
                    "{name}: {sort}.{of_it} is off by {off} of {largest}"
                );
            }
        }
        count += 1;
    }
    assert_eq!(count, 12);
}

#[test]
fn a_product_alone_has_the_bits_of_autocast() {
    for (case, recorded) in recorded_cases()
        .filter(|(case, _)| case["name"] == "linear" || case["name"] == "layer-norm")
    {
        let found = run(&model(&case), &case, &recorded, variant(false, Recompute::None));
        assert!(found["output.0"].equal(&recorded["output.0"]), "{}", case["name"]);
        let full = BackwardVariant { precision: Precision::F32, ..variant(false, Recompute::None) };
        let full = run(&model(&case), &case, &recorded, full);
        assert_eq!(
            full["output.0"].equal(&found["output.0"]),
            case["name"] == "layer-norm",
            "only products are rounded"
        );
    }
}

#[test]
fn in_halves_and_computed_again_every_layer_has_the_same_bits() {
    for (case, recorded) in recorded_cases() {
        let run = |halves, recompute| -> Vec<_> {
            run(&model(&case), &case, &recorded, variant(halves, recompute)).into_iter().collect()
        };
        let plain = run(false, Recompute::None);
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            assert_same(&run(true, recompute), &plain, &format!("{}, {recompute:?}", case["name"]));
        }
    }
}

#[test]
fn a_step_that_is_skipped_changes_nothing_and_clears_the_gradients() {
    let mut engine =
        engine("{inputs: {x: [batch, 3]}, layers: [{Linear: {in_features: 3, out_features: 2}}]}");
    engine.set_optimizer(pipeline::optimizer::OptimizerSpec::adam(0.1));
    let before = engine.state().unwrap();
    let step = |engine: &mut Engine, grad: f32, skip: bool| {
        engine.forward(&train(0), vec![normal("x", &[4, 3])]).unwrap();
        engine
            .backward(
                key(0),
                vec![vec![Tensor::full([4, 2], f64::from(grad), (Kind::Float, Device::Cpu))]],
            )
            .unwrap();
        engine
            .optim_step(
                &Update { lr: 0.1, scale: 1.0, clip: f64::NAN, skip },
                Vec::new(),
                HealthCheck::Off,
            )
            .unwrap();
    };
    step(&mut engine, f32::INFINITY, true);
    assert_same(&engine.state().unwrap(), &before, "skipped");
    assert!(copies(engine.gradients()).is_empty());
    assert!(
        engine.optimizer_state(OptimizerStateScope::All).unwrap().is_empty(),
        "Adam counts no step"
    );
}

/// One op after the other in bfloat16, with dropout between queries and values.
#[test]
fn attention_with_dropout_has_weights_in_full_precision() {
    let yaml = "{inputs: {x: [batch, 6, 8]}, layers: [{MultiheadAttention: {embed_dim: 8, \
                num_heads: 2, dropout: 0.25, batch_first: true}}]}";
    let out = |precision| {
        let mut stage = whole(&graph(yaml), true);
        stage.layers[0].precision = precision;
        let mut engine = build(stage).unwrap();
        engine.forward(&train(0), vec![normal("x", &[3, 6, 8])]).unwrap().remove(0)
    };
    let (full, reduced) = (out(Precision::F32), out(Precision::Bf16));
    let off = (&full - &reduced).abs().max().double_value(&[]) / full.abs().max().double_value(&[]);
    assert!(off > 0.0 && off < TOLERANCE, "{off}: the same elements are dropped");
}

/// A step as with `precision: fp16`, but in float32, in which scaling by a power of two changes no
/// digit.
#[test]
fn a_loss_that_is_scaled_and_gradients_that_are_scaled_back_give_the_same_bits() {
    let weights = |scale: f64| {
        let mut engine = engine(super::models::RESIDUAL);
        engine.set_optimizer(pipeline::optimizer::OptimizerSpec::adam(0.1));
        for step in 0..3 {
            let output = engine
                .forward(&train(step), vec![normal(&format!("x {step}"), &[4, 3])])
                .unwrap()
                .remove(0);
            let target = normal(&format!("y {step}"), &[4, 2]);
            let loss = engine.loss(key(step), &mse(&output, &target, scale), Mode::Train).unwrap();
            assert!(loss.numbers().unwrap()[0] > scale / 100.0);
            engine.backward(key(step), vec![vec![]]).unwrap();
            let update = Update { lr: 0.1, scale: 1.0 / scale, clip: 1.0, skip: false };
            engine.optim_step(&update, Vec::new(), HealthCheck::Off).unwrap();
        }
        engine.state().unwrap()
    };
    assert_same(&weights(65_536.0), &weights(1.0), "scaled");
}

/// Rounded parameters are kept from microbatch to microbatch, but not beyond a change.
#[test]
fn changed_parameters_are_rounded_anew() {
    let yaml = "{inputs: {x: [batch, 3]}, layers: [{Linear: {in_features: 3, out_features: 2}}]}";
    let in_bf16 = || {
        let mut stage = whole(&graph(yaml), true);
        stage.layers[0].precision = Precision::Bf16;
        build(stage).unwrap()
    };
    let x = || vec![normal("x", &[4, 3])];
    let output = |engine: &mut Engine| engine.forward(&eval(), x()).unwrap().remove(0);
    let fresh = |engine: &Engine| {
        let mut other = in_bf16();
        other.load_state(engine.state().unwrap().into_iter().collect()).unwrap();
        output(&mut other)
    };
    let mut engine = in_bf16();
    engine.set_optimizer(OptimizerSpec::adam(0.1));
    let first = output(&mut engine);
    assert!(first.equal(&output(&mut engine)) && first.equal(&fresh(&engine)));

    engine.forward(&train(0), x()).unwrap();
    engine.backward(key(0), vec![vec![normal("grad", &[4, 2])]]).unwrap();
    optim_step(&mut engine, 0.1).unwrap();
    let second = output(&mut engine);
    assert!(!second.equal(&first) && second.equal(&fresh(&engine)));

    engine.load_state(in_bf16().state().unwrap().into_iter().collect()).unwrap();
    assert!(output(&mut engine).equal(&first));
}
