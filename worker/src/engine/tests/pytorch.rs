//! Compares every kind of layer with PyTorch: with the records in tests/layers, or with new ones
//! from tools/layer_oracle.py.

use super::*;
use layerspec::{Bindings, LayerKind, Precision};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The rule of tests/oracle: sums in another order differ in the last bits of their largest term,
/// so a number near zero is compared as if it were `FLOOR`.
const RTOL: f64 = 1e-5;
/// The same for GPUs, whose attention is computed in other steps.
const RTOL_GPU: f64 = 3e-5;
const FLOOR: f64 = 1e-2;
/// A number below this share of its tensor's largest counts as this large, too. A sum that nearly
/// cancels, such as the gradient of keys' biases, is only as exact as its terms.
const SHARE: f64 = 0.1;
/// The number of samples that tools/layer_oracle.py draws.
const DRAWS: u64 = 1000;

/// Tensors as tests/layers/README.md names them.
pub(crate) type Named = BTreeMap<String, Tensor>;

pub(crate) fn cases() -> Vec<Json> {
    let path = folder().join("cases.json");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/layers")
}

fn recorded(name: &str) -> Named {
    let recorded = std::env::var_os("BOSSMAN_RECORDED_LAYERS")
        .map_or(folder().join("recorded"), PathBuf::from);
    let path = recorded.join(format!("{name}.safetensors"));
    let read = Tensor::read_safetensors(&path);
    read.unwrap_or_else(|error| panic!("{error}: `tools/layer_oracle.py --record` writes it"))
        .into_iter()
        .collect()
}

/// The tensors of one sort, by number or name.
pub(crate) fn of<'a>(named: &'a Named, sort: &str) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
    let sort = format!("{sort}.");
    named.iter().filter_map(move |(name, tensor)| Some((name.strip_prefix(&sort)?, tensor)))
}

/// A model of the case's layer. The outermost size of the first input, and of others with the same
/// size, is a named dimension.
pub(crate) fn model(case: &Json) -> LayerGraph {
    let given = case["inputs"].as_array().unwrap();
    let shape = |input: &Json| input.get("shape").unwrap_or(input).as_array().unwrap().clone();
    let batch = shape(&given[0]).first().cloned();
    let input = |(port, input): (usize, &Json)| {
        let mut shape = shape(input);
        if shape.first() == batch.as_ref() && !shape.is_empty() {
            shape[0] = "batch".into();
        }
        let dtype = match input.get("dtype") {
            Some(dtype) => dtype.clone(),
            None => if input.get("below").is_some() { "int64" } else { "float32" }.into(),
        };
        (format!("x{port}"), serde_json::json!({"shape": shape, "dtype": dtype}))
    };
    let inputs: serde_json::Map<String, Json> = given.iter().enumerate().map(input).collect();
    let mut layer = case["layer"].as_object().unwrap().clone();
    layer.insert("name".into(), "it".into());
    layer.insert("in_variables".into(), (1..given.len()).map(|port| format!("x{port}")).collect());
    // JSON is YAML.
    graph(&serde_json::json!({"inputs": inputs, "layers": [layer]}).to_string())
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
    let mut stage = whole(graph, true);
    stage.layers[0].recompute = Some(variant.recompute);
    stage.layers[0].precision = variant.precision;
    stage.device = device();
    let mut engine = build(stage).unwrap();
    let state = of(recorded, "state").map(|(name, tensor)| (format!("it.{name}"), tensor.copy()));
    engine.load_state(state.collect()).unwrap();
    let evaluates = case.get("eval") == Some(&Json::Bool(true));
    let pass = if evaluates { eval() } else { train(0) };
    let inputs = graph.inputs().iter().zip(of(recorded, "input"));
    let inputs = inputs.map(|(value, (_, tensor))| match graph.value(*value).ty.dtype {
        layerspec::DType::Bool => tensor.to_kind(Kind::Bool),
        _ => tensor.copy(),
    });
    let outputs = engine.forward(&pass, inputs.collect()).unwrap();
    let mut found = Named::new();
    if !evaluates {
        let grads = of(recorded, "grad").map(|(_, grad)| vec![grad.copy()]).collect();
        let input_grads = if variant.halves {
            let input_grads = engine.backward_input(key(0), grads).unwrap();
            engine.backward_weight(key(0)).unwrap();
            input_grads
        } else {
            engine.backward(key(0), grads).unwrap()
        };
        for (port, grad) in input_grads.into_iter().enumerate() {
            found.extend(grad.into_iter().map(|grad| (format!("input_grad.{port}"), grad)));
        }
    }
    let named = |sort: &str, name: &str| name.replacen("it.", &format!("{sort}."), 1);
    found.extend(
        outputs.into_iter().enumerate().map(|(port, output)| (format!("output.{port}"), output)),
    );
    found.extend(
        copies(engine.gradients())
            .into_iter()
            .map(|(name, grad)| (named("param_grad", &name), grad)),
    );
    let buffers = engine.params.params().all.iter().filter(|param| !param.trained);
    found.extend(buffers.map(|param| (named("buffer", &param.name), param.tensor.copy())));
    found.into_iter().map(|(name, tensor)| (name, tensor.to_device(Device::Cpu))).collect()
}

/// The largest error of the tensors of one sort, or `None` without tensors. Infinite if one is
/// missing.
fn worst(found: &Named, recorded: &Named, sort: &str) -> Option<f64> {
    let names = |named| of(named, sort).map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    if names(found) != names(recorded) {
        return Some(f64::INFINITY);
    }
    of(found, sort)
        .zip(of(recorded, sort))
        .map(|((_, found), (_, expected))| error(found, expected))
        .reduce(f64::max)
}

fn error(found: &Tensor, expected: &Tensor) -> f64 {
    if found.size() != expected.size() {
        return f64::INFINITY;
    }
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let floor = (expected.abs().max().double_value(&[]) * SHARE).max(FLOOR);
    let errors = (found - &expected).abs() / expected.abs().clamp_min(floor);
    let worst = errors.max().double_value(&[]);
    if worst.is_nan() {
        f64::INFINITY
    } else {
        worst
    }
}

#[test]
fn every_kind_has_a_case() {
    let cases = cases();
    let has = |kind: &str| cases.iter().any(|case| case["layer"].get(kind).is_some());
    // PyTorch does not have user-defined layers. `own.rs` tests them.
    let own = ["Custom", "TorchScript"];
    let without: Vec<_> =
        LayerKind::NAMES.iter().filter(|kind| !has(kind) && !own.contains(kind)).collect();
    assert!(without.is_empty(), "no case in tests/layers/cases.json for {without:?}");
}

#[test]
fn every_layer_computes_what_pytorch_does() {
    let column = |error: Option<f64>| error.map_or("-".into(), |error| format!("{error:.1e}"));
    println!("{:36} {:>9} {:>12} {:>16}", "case", "outputs", "input grads", "parameter grads");
    let mut wrong = Vec::new();
    let rtol = if device() == Device::Cpu { RTOL } else { RTOL_GPU };
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
        let worst = |sorts: &[&str]| {
            sorts.iter().filter_map(|sort| worst(&found, &recorded, sort)).reduce(f64::max)
        };
        let errors = [worst(&["output", "buffer"]), worst(&["input_grad"]), worst(&["param_grad"])];
        let [outputs, inputs, params] = errors.map(column);
        println!("{name:36} {outputs:>9} {inputs:>12} {params:>16}");
        if errors.iter().flatten().any(|error| *error > rtol) {
            wrong.push(name.to_owned());
        }
        expect_foretold_shapes(&graph, &recorded, name);
    }
    assert!(wrong.is_empty(), "not within {rtol} of PyTorch: {wrong:?}");
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
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let (graph, recorded) = (model(&case), recorded(name));
        let run = |halves, recompute| {
            let variant = BackwardVariant { halves, recompute, precision: Precision::F32 };
            run(&graph, &case, &recorded, variant).into_iter().collect()
        };
        let plain: Vec<_> = run(false, Recompute::None);
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            assert_same(&run(true, recompute), &plain, &format!("{name}, {recompute:?}"));
        }
    }
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
