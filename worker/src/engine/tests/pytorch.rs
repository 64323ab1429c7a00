//! Compares every kind of layer with PyTorch: with the records in tests/layers, or with new ones
//! from tools/layer_oracle.py.

use super::*;
use crate::self_check::kernels::deterministic_if_possible;
pub(crate) use crate::self_check::records::{of, Named};
use crate::self_check::{comparison, records};
use layerspec::{Bindings, LayerKind, Precision};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensor::determinism::Kernels;

/// The number of samples that tools/layer_oracle.py draws.
const DRAWS: u64 = 1000;

pub(crate) fn cases() -> Vec<Json> {
    records::cases().unwrap()
}

/// The record of a case: the one in tests/layers, or in the folder that tools/layer_oracle.py
/// names.
fn recorded(name: &str) -> Named {
    let Some(fresh) = std::env::var_os("BOSSMAN_RECORDED_LAYERS") else {
        return records::recorded(name)
            .unwrap_or_else(|error| panic!("{error}: `tools/layer_oracle.py --record` writes it"));
    };
    let path = PathBuf::from(fresh).join(format!("{name}.safetensors"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    records::read(&bytes).unwrap()
}

pub(crate) fn model(case: &Json) -> LayerGraph {
    // One thread each, because tests run in parallel.
    tensor::threads::set_count(1);
    comparison::model(case).unwrap()
}

/// The variant of the backward pass.
#[derive(Clone, Copy)]
pub(crate) struct BackwardVariant {
    pub(crate) halves: bool,
    pub(crate) recompute: Recompute,
    pub(crate) precision: Precision,
}

/// Runs the layer on the recorded tensors, and names its results as in the record. They lie on the
/// host.
pub(crate) fn run(
    graph: &LayerGraph,
    case: &Json,
    recorded: &Named,
    variant: BackwardVariant,
) -> Named {
    run_and_tell_kernels(graph, case, recorded, variant).0
}

/// As [`run`], with the kernels that computed the results.
fn run_and_tell_kernels(
    graph: &LayerGraph,
    case: &Json,
    recorded: &Named,
    variant: BackwardVariant,
) -> (Named, Kernels) {
    let device = device();
    let found = deterministic_if_possible(device, || {
        let mut stage = comparison::stage(graph, device);
        stage.layers[0].recompute = Some(variant.recompute);
        stage.layers[0].precision = variant.precision;
        comparison::run_with(stage, case, recorded, |engine, key, grads| {
            if !variant.halves {
                return engine.backward(key, grads);
            }
            let input_grads = engine.backward_input(key, grads)?;
            engine.backward_weight(key)?;
            Ok(input_grads)
        })
    });
    found.unwrap()
}

#[test]
fn every_kind_has_a_case() {
    let cases = cases();
    let has = |kind: &str| cases.iter().any(|case| case["layer"].get(kind).is_some());
    // PyTorch does not have them as layers. `own.rs`, `constants.rs` and `aten.rs` test them.
    let own = ["Custom", "TorchScript", "Constant", "Aten"];
    let without: Vec<_> =
        LayerKind::NAMES.iter().filter(|kind| !has(kind) && !own.contains(kind)).collect();
    assert!(without.is_empty(), "no case in tests/layers/cases.json for {without:?}");
}

#[test]
fn every_layer_computes_what_pytorch_does() {
    let column = |error: Option<f64>| error.map_or("-".into(), |error| format!("{error:.1e}"));
    println!("{:36} {:>9} {:>12} {:>16}", "case", "outputs", "input grads", "parameter grads");
    let mut wrong = Vec::new();
    let tolerances = comparison::Tolerances::of(device());
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let (graph, recorded) = (model(&case), recorded(name));
        let found = run(
            &graph,
            &case,
            &recorded,
            BackwardVariant {
                halves: false,
                recompute: Recompute::None,
                precision: Precision::F32,
            },
        );
        let errors = comparison::errors(&found, &recorded).unwrap();
        let [outputs, inputs, params] = errors.map(column);
        println!("{name:36} {outputs:>9} {inputs:>12} {params:>16}");
        let tolerance = tolerances.for_case(&case);
        if errors.iter().flatten().any(|error| *error > tolerance) {
            wrong.push(name.to_owned());
        }
        expect_foretold_shapes(&graph, &recorded, name);
    }
    assert!(wrong.is_empty(), "not as in PyTorch within {tolerances:?}: {wrong:?}");
}

fn expect_foretold_shapes(graph: &LayerGraph, recorded: &Named, name: &str) {
    let mut bindings = Bindings::new();
    let sizes =
        |tensor: &Tensor| tensor.size().iter().map(|size| size.cast_unsigned()).collect::<Vec<_>>();
    for (value, sort) in [(graph.inputs(), "input"), (graph.outputs(), "output")] {
        assert_eq!(value.len(), of(recorded, sort).count(), "{name}: number of {sort}s");
        for (value, (_, tensor)) in value.iter().zip(of(recorded, sort)) {
            graph.value(*value).ty.shape.match_sizes(&sizes(tensor), &mut bindings).expect(name);
        }
    }
}

#[test]
fn in_halves_and_computed_again_every_layer_has_the_same_bits() {
    let mut without_kernel = Vec::new();
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let (graph, recorded) = (model(&case), recorded(name));
        let run = |halves, recompute| {
            let variant = BackwardVariant { halves, recompute, precision: Precision::F32 };
            let (found, kernels) = run_and_tell_kernels(&graph, &case, &recorded, variant);
            (found.into_iter().collect::<Vec<_>>(), kernels)
        };
        let (plain, kernels) = run(false, Recompute::None);
        if kernels != Kernels::Deterministic {
            without_kernel.push(name.to_owned());
            continue;
        }
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            let (found, kernels) = run(true, recompute);
            assert_eq!(kernels, Kernels::Deterministic, "{name}, {recompute:?}");
            assert_same(&found, &plain, &format!("{name}, {recompute:?}"));
        }
    }
    // The fake GPU computes with the kernels of the CPU.
    let is_gpu = device() != Device::Cpu && std::env::var_os("FAKECUDA_DEVICES").is_none();
    let expected: &[&str] = if is_gpu { &["adaptive-max-pool-2d"] } else { &[] };
    assert_eq!(without_kernel, expected, "equal bits are not promised");
}

/// Mean, standard deviation and largest absolute value of initial parameters differ from PyTorch's
/// only by chance.
#[test]
fn every_layer_begins_as_in_pytorch() {
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let recorded = recorded(name);
        let mut all: BTreeMap<String, Vec<Tensor>> = BTreeMap::new();
        let draws = if of(&recorded, "init").next().is_some() { DRAWS } else { 0 };
        let graph = model(&case);
        for seed in 0..draws {
            let engine = build(StageConfig { seed, ..whole(&graph, false) }).unwrap();
            for param in engine.params.params().all.iter().filter(|param| param.trained) {
                all.entry(param.name.replacen("it.", "", 1))
                    .or_default()
                    .push(param.tensor.shallow_clone());
            }
        }
        for (param, drawn) in all {
            let drawn = Tensor::stack(&drawn, 0).to_kind(Kind::Double);
            let figure = |tensor: Tensor| tensor.double_value(&[]);
            let found = [drawn.mean(Kind::Double), drawn.std(false), drawn.abs().max()].map(figure);
            let expected = &recorded[&format!("init.{param}")];
            let expected = [0, 1, 2].map(|index| expected.double_value(&[index]));
            let off = [0, 1, 2].map(|index| (found[index] - expected[index]).abs());
            let (deviation, largest) = (expected[1], expected[2]);
            let near = off[0] <= 0.12 * deviation + 1e-6
                && off[1] <= 0.08 * deviation + 1e-6
                && off[2] <= 0.2 * largest;
            assert!(near, "{name}: {param}: {found:?}, in PyTorch {expected:?}");
        }
    }
}
