//! The backward pass in two halves: the bits of one pass, and less memory between them.

use super::models::{BRANCHY, CONV, PARTS, RESIDUAL, TEXT};
use super::*;
use crate::compute::measure::measure;

pub(crate) const ENCODER: &str = "
model: encoder
inputs: {x: [batch, 5, 8]}
layers:
  - TransformerEncoderLayer: {d_model: 8, nhead: 2, dim_feedforward: 16, batch_first: true, \
                                  norm_first: true, activation: gelu}
    name: pre
  - Transpose: {dim0: 0, dim1: 1}
  - TransformerEncoderLayer: {d_model: 8, nhead: 4, dim_feedforward: 12, dropout: 0.0}
    name: post
  - Transpose: {dim0: 0, dim1: 1}
";

/// One weight is used twice on one path, and its output is used twice, too. PyTorch 2.11's own
/// split of the backward pass silently gives other gradients here.
const TWICE: &str = "
model: twice
inputs: {x: [batch, 6]}
layers:
  - Linear: {in_features: 6, out_features: 6}
    name: first
  - Tanh
  - Linear: {in_features: 6, out_features: 6}
    share: first
    out_variables: [middle]
  - Linear: {in_features: 6, out_features: 6}
    share: first
  - Mul:
    in_variables: [middle]
";

/// Several outputs of one stage, each with a gradient. One is made from the other, and from parts
/// of a layer's packed output.
const OUTPUTS: &str = "
model: outputs
inputs: {x: [batch, 4]}
layers:
  - Linear: {in_features: 4, out_features: 6}
    out_variables: [a]
  - Sigmoid: {}
    out_variables: [b]
  - Concat: {dim: 1}
    in_variables: [a, b, a]
  - Linear: {in_features: 24, out_features: 3}
    out_variables: [c]
outputs: [c, a, b]
";

fn input(name: &str, graph: &LayerGraph, index: usize) -> Tensor {
    let ty = &graph.value(graph.inputs()[0]).ty;
    let bindings = layerspec::Bindings::new().with("batch", 3 + index as u64);
    let shape: Vec<i64> = ty.dims().iter().map(|dim| dim.eval(&bindings).unwrap() as i64).collect();
    match ty.dtype.is_floating() {
        true => normal(&format!("{name} {index}"), &shape),
        false => (normal(name, &shape).abs() * 5.0).to_kind(Kind::Int64).clamp(0, 12),
    }
}

/// The order of the passes of three microbatches.
#[derive(Clone, Copy)]
enum Order {
    AtOnce,
    Halves,
    /// All input halves first, the last microbatch's first.
    Late,
}

/// The gradients of inputs and parameters after three microbatches.
fn gradients(
    graph: &LayerGraph,
    order: Order,
    change: impl Fn(&mut StageConfig),
) -> Vec<(String, Tensor)> {
    let mut model = whole(graph, graph.value(graph.inputs()[0]).ty.dtype.is_floating());
    change(&mut model);
    let mut engine = build(model).unwrap();
    let mut all = Vec::new();
    let mut output_grads = Vec::new();
    for index in 0..3 {
        let outputs =
            engine.forward(&train(index), vec![input("x", graph, index as usize)]).unwrap();
        let grad = |(port, output): (usize, &Tensor)| {
            vec![normal(&format!("g {index} {port}"), &output.size())]
        };
        output_grads.push(outputs.iter().enumerate().map(grad).collect::<Vec<_>>());
    }
    let mut keep = |index: u32, grads: Vec<Vec<Tensor>>| {
        let grads = grads.into_iter().flatten().enumerate();
        all.extend(grads.map(|(port, grad)| (format!("input {index} {port}"), grad.copy())));
    };
    let indices: [u32; 3] = if matches!(order, Order::Late) { [2, 0, 1] } else { [0, 1, 2] };
    for index in indices {
        let grads = std::mem::take(&mut output_grads[index as usize]);
        match order {
            Order::AtOnce => keep(index, engine.backward(key(index), grads).unwrap()),
            _ => keep(index, engine.backward_input(key(index), grads).unwrap()),
        }
        if matches!(order, Order::Halves) {
            engine.backward_weight(key(index)).unwrap();
        }
    }
    if matches!(order, Order::Late) {
        (0..3).for_each(|index| engine.backward_weight(key(index)).unwrap());
    }
    assert_eq!((engine.pending_microbatches(), engine.saved_bytes()), (0, SavedBytes::default()));
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.extend(copies(engine.gradients()));
    all
}

#[test]
fn in_halves_the_bits_are_those_of_one_pass() {
    for yaml in [RESIDUAL, BRANCHY, CONV, PARTS, TEXT, ENCODER, TWICE, OUTPUTS] {
        let graph = graph(yaml);
        let whole = gradients(&graph, Order::AtOnce, |_| ());
        assert!(whole.iter().all(|(name, grad)| {
            name.starts_with("input") || grad.abs().sum(Kind::Float).double_value(&[]) > 0.0
        }));
        for order in [Order::Halves, Order::Late] {
            assert_same(&gradients(&graph, order, |_| ()), &whole, graph.name());
        }
    }
}

#[test]
fn what_is_computed_again_has_the_same_bits() {
    for yaml in [RESIDUAL, BRANCHY, CONV, PARTS, TEXT, ENCODER, OUTPUTS] {
        let graph = graph(yaml);
        let plain = gradients(&graph, Order::AtOnce, |_| ());
        for recompute in [Recompute::Selective, Recompute::Full] {
            for order in [Order::AtOnce, Order::Late] {
                let change = |model: &mut StageConfig| {
                    model.layers.iter_mut().for_each(|layer| layer.recompute = Some(recompute));
                };
                assert_same(
                    &gradients(&graph, order, change),
                    &plain,
                    &format!("{} {recompute:?}", graph.name()),
                );
            }
        }
    }
}

#[test]
fn running_statistics_are_learned_once_where_the_forward_pass_is_done_again() {
    for yaml in [CONV, PARTS] {
        let state = |recompute| {
            let graph = graph(yaml);
            let mut model = whole(&graph, true);
            model.layers.iter_mut().for_each(|layer| layer.recompute = recompute);
            let mut engine = build(model).unwrap();
            let output = engine.forward(&train(0), vec![input("x", &graph, 0)]).unwrap().remove(0);
            engine.backward(key(0), vec![vec![output.ones_like()]]).unwrap();
            engine.state().unwrap()
        };
        assert_same(&state(Some(Recompute::Full)), &state(None), "state");
    }
}

/// By hand, against a weight that is used twice on one path.
#[test]
fn a_weight_used_twice_has_the_gradient_of_autograd() {
    let graph = graph(TWICE);
    let mut engine = build(whole(&graph, true)).unwrap();
    let state: HashMap<String, Tensor> = engine.state().unwrap().into_iter().collect();
    let leaf = |name: &str| state[name].copy().set_requires_grad(true);
    let (x, weight, bias) = (normal("x", &[5, 6]), leaf("first.weight"), leaf("first.bias"));
    let middle = x.linear(&weight, Some(&bias)).tanh().linear(&weight, Some(&bias));
    let output = middle.linear(&weight, Some(&bias)) * &middle;
    let grad = normal("g", &[5, 6]);
    (&output * &grad).sum(Kind::Float).backward();

    engine.forward(&train(0), vec![x]).unwrap();
    engine.backward_input(key(0), vec![vec![grad]]).unwrap();
    engine.backward_weight(key(0)).unwrap();
    let found = copies(engine.gradients());
    for ((name, found), leaf) in found.iter().zip([weight, bias]) {
        assert!(found.allclose(&leaf.grad(), 1e-5, 1e-6, false), "{name}");
    }
}

fn held(yaml: &str, change: impl Fn(&mut StageConfig)) -> SavedBytes {
    let graph = graph(yaml);
    let mut model = whole(&graph, false);
    change(&mut model);
    let mut engine = build(model).unwrap();
    let output = engine.forward(&train(0), vec![input("x", &graph, 0)]).unwrap().remove(0);
    let forward = engine.saved_bytes().forward;
    engine.backward_input(key(0), vec![vec![output.ones_like()]]).unwrap();
    drop(output);
    SavedBytes { forward, between: engine.saved_bytes().between }
}

/// x, 2 units wide, goes through two layers of 8 units: an output each, which is the next one's
/// input.
const WIDE: &str = "
model: wide
inputs: {x: [batch, 2]}
layers:
  - Linear: {in_features: 2, out_features: 8}
  - ReLU
  - Linear: {in_features: 8, out_features: 8}
  - ReLU
  - Linear: {in_features: 8, out_features: 1}
";

#[test]
fn what_backward_does_not_need_is_not_kept() {
    let row = 3 * 4;
    // Every linear layer's input: 2, 8 and 8. An activation's output is the same memory.
    let plain = held(WIDE, |_| ());
    assert_eq!(plain.forward, row * (2 + 8 + 8));
    // Between the halves, the gradients of the outputs too: 8, 8 and 1.
    assert_eq!(plain.between, row * (2 + 8 + 8 + 8 + 8 + 1));
    let frozen = held(WIDE, |model| model.layers[2].frozen = true);
    assert_eq!((frozen.forward, frozen.between), (row * (2 + 8 + 8), row * (2 + 8 + 8 + 1)));
    let all_but_last =
        held(WIDE, |model| model.layers[..4].iter_mut().for_each(|layer| layer.frozen = true));
    assert_eq!((all_but_last.forward, all_but_last.between), (row * 8, row * (8 + 1)));
}

/// The memory of a stage with all layers, from those of its layers measured one by one.
fn predicted(yaml: &str) -> SavedBytes {
    let graph = graph(yaml);
    let sizes = layerspec::Bindings::new().with("batch", 3);
    let times = graph.layers().iter().map(|layer| {
        let meta = |value: &layerspec::ValueId| {
            let ty = &graph.value(*value).ty;
            let shape = ty.dims().iter().map(|dim| dim.eval(&sizes).unwrap()).collect();
            pipeline::TensorMeta { dtype: ty.dtype, shape }
        };
        let probe = pipeline::task::LayerProbe {
            layer: layer.clone(),
            inputs: layer.inputs.iter().map(meta).collect(),
            input_grads: layer.inputs.iter().any(|value| graph.requires_grad(*value)),
        };
        measure(&probe, Device::Cpu, &CustomLayers::default()).unwrap()
    });
    let fleet = pipeline::Fleet { times: vec![times.collect()], ..pipeline::Fleet::default() };
    let placement = pipeline::schedule::Placement::Plain;
    let plan = pipeline::Plan::new(&graph, &pipeline::Cuts::Auto, 1, placement).unwrap();
    let bytes = fleet.bytes(&graph, &plan, &sizes, &OptimizerSpec::sgd(0.1))[0];
    // The stage keeps the gradient of the prediction, too, once a loss has made it.
    let prediction = graph.value(graph.outputs()[0]).ty.bytes(&sizes).unwrap();
    SavedBytes { forward: bytes.held - prediction, between: bytes.held_between }
}

/// An activation's output that is the next layer's input is in memory once.
#[test]
fn measured_layers_tell_the_memory_of_a_stage() {
    for yaml in [WIDE, CONV, ENCODER, RESIDUAL, BRANCHY, TWICE, TEXT, PARTS] {
        assert_eq!(predicted(yaml), held(yaml, |_| ()), "{yaml}");
    }
}

#[test]
fn between_the_halves_only_what_weights_need_is_kept() {
    for yaml in [ENCODER, CONV] {
        let held = held(yaml, |_| ());
        assert!(0 < held.between && held.between < held.forward, "{held:?}");
    }
}

#[test]
fn computing_again_keeps_less() {
    let by = |recompute| {
        held(ENCODER, |model: &mut StageConfig| {
            model.layers.iter_mut().for_each(|layer| layer.recompute = Some(recompute));
        })
        .forward
    };
    let (none, selective, full) =
        (by(Recompute::None), by(Recompute::Selective), by(Recompute::Full));
    assert!(full < selective && selective < none, "{full} {selective} {none}");
    // Two layers' inputs, 8 wide, of 3 samples of 5 positions; the transposed one is not what the
    // first layer made.
    assert_eq!(full, 2 * 15 * 8 * 4);
}

#[test]
fn a_microbatch_can_be_discarded_between_its_halves() {
    let mut engine = engine(RESIDUAL);
    let output = engine.forward(&train(0), vec![normal("x", &[4, 3])]).unwrap().remove(0);
    engine.backward_input(key(0), vec![vec![output.ones_like()]]).unwrap();
    let again = engine.forward(&train(0), vec![normal("x", &[4, 3])]);
    assert!(matches!(again, Err(EngineError::Sequence(SequenceError::AlreadyForwarded { .. }))));
    engine.discard(1);
    assert_eq!(engine.pending_microbatches(), 0);
    assert_eq!(
        engine.backward_weight(key(0)),
        Err(EngineError::Sequence(SequenceError::NoBackwardInput { key: key(0) }))
    );
}

#[test]
fn layers_are_measured_apart_from_stages() {
    let graph = graph(ENCODER);
    let probe = |layer: usize, shape: &[u64]| pipeline::task::LayerProbe {
        layer: graph.layers()[layer].clone(),
        inputs: vec![pipeline::TensorMeta {
            dtype: layerspec::DType::Float32,
            shape: shape.into(),
        }],
        input_grads: true,
    };
    let times = measure(&probe(0, &[3, 5, 8]), Device::Cpu, &CustomLayers::default()).unwrap();
    assert!([
        times.forward,
        times.backward,
        times.backward_input,
        times.backward_weight,
        times.optim_step
    ]
    .iter()
    .all(|time| *time > 0));
    assert!(0 < times.saved_bytes_between && times.saved_bytes_between < times.saved_bytes);
    let wrong = measure(&probe(0, &[3, 5, 9]), Device::Cpu, &CustomLayers::default()).unwrap_err();
    assert!(
        wrong.to_string().starts_with("layer pre (TransformerEncoderLayer), forward"),
        "{wrong}"
    );
}
