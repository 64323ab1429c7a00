//! The gradients that a stage returns, and the order in which they are summed.

use super::*;

fn values(tensors: &[Tensor]) -> Vec<f64> {
    tensors.iter().map(|tensor| tensor.double_value(&[0, 0])).collect()
}

fn number(value: f32) -> Tensor {
    Tensor::from_slice(&[value]).reshape([1, 1])
}

fn row(values: &[f32]) -> Tensor {
    Tensor::from_slice(values).reshape([1, -1])
}

/// `[11x, 5x, 7x, x, x]`: three layers use `x` once, the last one twice.
fn five_uses(sum_here: bool) -> Engine {
    let yaml = "
model: five-uses
inputs: {x: [batch, 1]}
layers:
  - Linear: {in_features: 1, out_features: 1, bias: false}
    out_variables: [a]
  - Linear: {in_features: 1, out_features: 1, bias: false}
    input: x
    out_variables: [b]
  - Linear: {in_features: 1, out_features: 1, bias: false}
    input: x
  - Concat: {dim: 1}
    in_variables: [a, b, x, x]
";
    let mut model = whole(&graph(yaml), true);
    model.inputs[0].sum_here = sum_here;
    let mut engine = build(model).unwrap();
    let weights = [("0.weight", 5.0), ("1.weight", 7.0), ("2.weight", 11.0)];
    engine.load_state(weights.map(|(name, value)| (name.into(), number(value))).into()).unwrap();
    engine
}

const GRAD: [f32; 5] = [1.0, 1.0, 1.0, 3.0, 4.0];

#[test]
fn each_use_gives_its_gradient_the_last_layer_and_port_first() {
    let mut engine = five_uses(false);
    engine.forward(&train(0), vec![number(1.0)]).unwrap();
    let grads = engine.backward(key(0), vec![vec![row(&GRAD)]]).unwrap();
    assert_eq!(values(&grads[0]), [4.0, 3.0, 11.0, 7.0, 5.0]);
}

#[test]
fn uses_are_summed_where_the_stage_was_told_to() {
    let mut engine = five_uses(true);
    engine.forward(&train(0), vec![number(1.0)]).unwrap();
    let grads = engine.backward(key(0), vec![vec![row(&GRAD)]]).unwrap();
    assert_eq!(values(&grads[0]), [30.0]);
}

#[test]
fn the_loss_comes_first_then_the_callers_in_their_order() {
    // In f32 the sum of these depends on the order.
    let mut engine = engine(
        "
model: one
inputs: {x: [batch, 1]}
layers: [Identity]
",
    );
    let prediction = engine.forward(&train(0), vec![number(3.0)]).unwrap().remove(0);
    engine.loss(key(0), &mse(&prediction, &number(1.0), 1.0), Mode::Train).unwrap();
    let others = [1e8, 1.0, -1e8].map(number).into();
    let grads = engine.backward(key(0), vec![others]).unwrap();
    assert_eq!(values(&grads[0]), [f64::from(((4f32 + 1e8) + 1.0) - 1e8)]);
}

#[test]
fn what_goes_in_is_never_written_to() {
    let mut engine = five_uses(true);
    let (input, grads) = (number(1.0), [1.0, 2.0, 4.0].map(|scale| row(&GRAD) * scale));
    for index in 0..3 {
        engine.forward(&train(index), vec![input.shallow_clone()]).unwrap();
        engine
            .backward(key(index), vec![grads.iter().map(Tensor::shallow_clone).collect()])
            .unwrap();
    }
    assert_eq!(values(&grads), [1.0, 2.0, 4.0]);
    assert_eq!(input.double_value(&[0, 0]), 1.0);
    assert_eq!(copies(engine.gradients())[0].1.double_value(&[0, 0]), 21.0);
}

#[test]
fn a_layer_that_takes_one_value_twice_gets_both_gradients() {
    let mut engine = engine(
        "
model: twice
inputs: {x: [batch, 1]}
layers:
  - Linear: {in_features: 1, out_features: 1}
    out_variables: [a]
  - Mul: {}
    in_variables: [a]
",
    );
    let mut state = engine.state().unwrap();
    state[0].1 = number(2.0);
    state[1].1 = Tensor::zeros([1], (Kind::Float, Device::Cpu));
    engine.load_state(state).unwrap();
    engine.forward(&train(0), vec![number(3.0)]).unwrap();
    // y = (2x)^2, dy/dx = 8x
    let grads = engine.backward(key(0), vec![vec![number(1.0)]]).unwrap();
    assert_eq!(values(&grads[0]), [24.0]);
}

#[test]
fn frozen_layers_pass_gradients_on_and_keep_their_weights() {
    let mut engine = engine(
        "
model: frozen
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 4}
  - Linear: {in_features: 4, out_features: 4}
    freeze: true
  - Linear: {in_features: 4, out_features: 2}
",
    );
    engine.set_optimizer(OptimizerSpec::adamw(0.1));
    let before = engine.state().unwrap();
    engine.forward(&train(0), vec![normal("x", &[5, 3])]).unwrap();
    let grads = engine.backward(key(0), vec![vec![normal("grad", &[5, 2])]]).unwrap();
    assert_eq!(grads[0][0].size(), [5, 3]);
    optim_step(&mut engine, 0.1).unwrap();
    let changed: Vec<_> = before
        .iter()
        .zip(engine.state().unwrap())
        .filter(|((_, before), (_, after))| !before.equal(after))
        .map(|((name, _), _)| name.as_str())
        .collect();
    assert_eq!(changed, ["0.weight", "0.bias", "2.weight", "2.bias"]);
}

#[test]
fn a_stage_without_any_gradient_keeps_nothing() {
    let mut model = whole(
        &graph(
            "
model: frozen
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 4}
    freeze: true
  - ReLU
",
        ),
        false,
    );
    model.inputs[0].sum_here = false;
    let mut engine = build(model).unwrap();
    let output = engine.forward(&train(0), vec![normal("x", &[5, 3])]).unwrap().remove(0);
    assert!(!output.requires_grad());
    assert!(engine.saved.forward_mut(key(0)).unwrap().layers.iter().all(Option::is_none));
    let grads = engine.backward(key(0), vec![vec![Tensor::ones_like(&output)]]).unwrap();
    assert!(grads[0].is_empty());
    assert!(engine.gradients().unwrap().is_empty());
}

#[test]
fn a_branch_that_no_gradient_reaches_is_left_alone() {
    let yaml = "
model: two-heads
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 1}
    out_variables: [left]
  - Linear: {in_features: 3, out_features: 1}
    input: x
    out_variables: [right]
outputs: [left, right]
";
    let mut engine = engine(yaml);
    engine.set_optimizer(OptimizerSpec::adamw(0.1));
    let before = engine.state().unwrap();
    engine.forward(&train(0), vec![normal("x", &[5, 3])]).unwrap();
    let grads = engine.backward(key(0), vec![vec![normal("grad", &[5, 1])], vec![]]).unwrap();
    assert_eq!(grads[0].len(), 1);
    assert!(engine.gradients().unwrap()[2].1.is_none());
    optim_step(&mut engine, 0.1).unwrap();
    let after = engine.state().unwrap();
    assert!(!before[0].1.equal(&after[0].1));
    assert_same(&before[2..], &after[2..], "the head without gradient");
}

#[test]
fn evaluation_keeps_nothing() {
    let mut engine = five_uses(true);
    let prediction = engine.forward(&eval(), vec![number(1.0)]).unwrap().remove(0);
    assert_eq!(engine.pending_microbatches(), 0);
    let target = row(&[11.0, 5.0, 7.0, 1.0, 6.0]);
    let loss = engine.loss(key(0), &mse(&prediction, &target, 0.5), Mode::Eval).unwrap();
    assert_eq!(loss.numbers().unwrap(), [2.5]);
    assert_eq!(
        engine.backward(key(0), vec![vec![]]).unwrap_err(),
        EngineError::Sequence(SequenceError::UnknownMicrobatch { key: key(0) })
    );
}
