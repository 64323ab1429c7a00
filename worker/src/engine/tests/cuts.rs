//! Law 1 for the engine: losses and weights are equal to the bit for every cut.

use super::chain::{Chain, Sample};
use super::models::{ATTENTION, BRANCHY, CONV, PARTS, RESIDUAL, TABLES, TEXT};
use super::*;

const STEPS: u64 = 3;

/// Microbatches of 3, 3 and 1 samples for each step.
fn samples(
    step: u64,
    inputs: fn(&str, i64) -> Vec<Tensor>,
    target: fn(&str, i64) -> Tensor,
) -> Vec<Sample> {
    let one = |(index, size): (usize, i64)| {
        let name = format!("{step} {index}");
        Sample { inputs: inputs(&name, size), target: target(&name, size) }
    };
    [3, 3, 1].into_iter().enumerate().map(one).collect()
}

fn classes(name: &str, shape: &[i64], classes: f64) -> Tensor {
    let mut stream = Key::new(6).text(name).stream(Device::Cpu).unwrap();
    stream.uniform(shape, Kind::Float, 0.0, classes).unwrap().floor().to_kind(Kind::Int64)
}

/// Losses by step, weights, optimizer state.
type ForwardOutput = (Vec<f32>, Vec<(String, Tensor)>, Vec<(String, Tensor)>);

fn run(
    mut chain: Chain,
    loss: &LossSpec,
    inputs: fn(&str, i64) -> Vec<Tensor>,
    target: fn(&str, i64) -> Tensor,
) -> ForwardOutput {
    chain.set_optimizer(OptimizerSpec::adam(1e-2));
    let losses =
        (0..STEPS).map(|step| chain.step(step, &samples(step, inputs, target), loss)).collect();
    (losses, chain.state(), chain.optimizer_state())
}

/// Runs every cut into one, two and three stages.
pub(super) fn no_cut_shows(
    yaml: &str,
    loss: &LossSpec,
    inputs: fn(&str, i64) -> Vec<Tensor>,
    target: fn(&str, i64) -> Tensor,
) {
    let graph = graph(yaml);
    let uncut = run(Chain::new(&graph, &[], true).unwrap(), loss, inputs, target);
    assert!(uncut.0.windows(2).all(|pair| pair[0] != pair[1]), "nothing is learned: {:?}", uncut.0);
    let layers = graph.layers().len();
    let twos = (1..layers).map(|cut| vec![cut]);
    let threes =
        (1..layers).flat_map(|first| (first + 1..layers).map(move |second| vec![first, second]));
    let mut tried = 0;
    for cuts in twos.chain(threes) {
        for sum in [true, false] {
            let chain = match Chain::new(&graph, &cuts, sum) {
                Ok(chain) => chain,
                Err(EngineError::Plan(PlanError::UnknownOwner { .. })) => continue,
                Err(error) => panic!("{cuts:?}: {error}"),
            };
            let (losses, state, optimizer_state) = run(chain, loss, inputs, target);
            assert_eq!(losses, uncut.0, "cut at {cuts:?}");
            assert_same(&state, &uncut.1, &format!("weights, cut at {cuts:?}"));
            assert_same(&optimizer_state, &uncut.2, &format!("optimizer, cut at {cuts:?}"));
            tried += 1;
        }
    }
    assert!(tried > 0);
}

#[test]
fn no_cut_shows_in_a_residual_model() {
    let (inputs, target) =
        (|name: &str, n| vec![normal(name, &[n, 3])], |name: &str, n| normal(name, &[n, 2]));
    no_cut_shows(RESIDUAL, &LossSpec::MSELoss, inputs, target);
}

#[test]
fn no_cut_shows_where_values_have_many_users() {
    let (inputs, target) =
        (|name: &str, n| vec![normal(name, &[n, 4])], |name: &str, n| normal(name, &[n, 2]));
    no_cut_shows(BRANCHY, &LossSpec::MSELoss, inputs, target);
}

#[test]
fn no_cut_shows_in_a_conv_net_with_batch_norm_and_dropout() {
    let (inputs, target) = (
        |name: &str, n| vec![normal(name, &[n, 1, 8, 8])],
        |name: &str, n| classes(name, &[n], 5.0),
    );
    no_cut_shows(
        CONV,
        &LossSpec::CrossEntropyLoss { classes: Classes::default(), label_smoothing: 0.1 },
        inputs,
        target,
    );
}

#[test]
fn no_cut_shows_where_layers_have_several_outputs() {
    let (inputs, target) =
        (|name: &str, n| vec![normal(name, &[n, 2, 6, 6])], |name: &str, n| normal(name, &[n, 5]));
    no_cut_shows(PARTS, &LossSpec::MSELoss, inputs, target);
}

#[test]
fn no_cut_shows_where_parameters_have_no_batch() {
    let inputs = |name: &str, n| vec![normal(name, &[n, 6, 8]), classes(name, &[n, 6], 13.0)];
    no_cut_shows(TABLES, &LossSpec::MSELoss, inputs, |name, n| normal(name, &[n, 6, 5]));
}

#[test]
fn no_cut_shows_with_tied_parameters() {
    let (inputs, target) = (
        |name: &str, n| vec![classes(name, &[n, 6], 13.0)],
        |name: &str, n| classes(name, &[n, 6], 13.0),
    );
    no_cut_shows(TEXT, &LossSpec::cross_entropy(), inputs, target);
}

#[test]
fn no_cut_shows_in_a_model_with_attention_and_masks() {
    let inputs = |name: &str, n| vec![normal(name, &[n, 5, 8]), classes(name, &[n, 5], 4.0).eq(0)];
    no_cut_shows(ATTENTION, &LossSpec::MSELoss, inputs, |name, n| normal(name, &[n, 5, 6]));
}

#[test]
fn no_cut_shows_in_a_model_of_operators() {
    const OPERATORS: &str = "
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 8}
  - Aten: {op: view, args: {size: [batch, 2, 4]}, out: [batch, 2, 4]}
  - Aten: {op: roll, args: {shifts: [1], dims: [2]}}
  - Aten: {op: cumsum, args: {dim: 2}}
  - Aten: {op: linalg_vector_norm, args: {ord: 3, dim: [2]}, out: [batch, 2]}
  - Linear: {in_features: 2, out_features: 2}
";
    let (inputs, target) =
        (|name: &str, n| vec![normal(name, &[n, 3])], |name: &str, n| normal(name, &[n, 2]));
    no_cut_shows(OPERATORS, &LossSpec::MSELoss, inputs, target);
}
