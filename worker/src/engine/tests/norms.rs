//! Running statistics of batch norm.

use super::*;

fn model(arguments: &str) -> String {
    format!(
        "
model: norm
inputs: {{x: [batch, 3, 2, 2]}}
layers:
  - BatchNorm2d: {{num_features: 3{arguments}}}
"
    )
}

/// Mean and unbiased variance of each channel.
fn statistics(input: &Tensor) -> (Tensor, Tensor) {
    let rows = input.transpose(0, 1).flatten(1, -1);
    (rows.mean_dim(1, false, Kind::Float), rows.var_dim(1, true, false))
}

fn assert_close(left: &Tensor, right: &Tensor) {
    assert!(left.allclose(right, 1e-5, 1e-6, false), "{left:?} {right:?}");
}

fn inputs() -> [Tensor; 2] {
    [normal("a", &[4, 3, 2, 2]) * 2.0 + 1.0, normal("b", &[4, 3, 2, 2]) - 3.0]
}

#[test]
fn training_moves_the_statistics_and_evaluation_uses_them() {
    let mut engine = engine(&model(", momentum: 0.25"));
    let (mut mean, mut var) = (
        Tensor::zeros([3], (Kind::Float, Device::Cpu)),
        Tensor::ones([3], (Kind::Float, Device::Cpu)),
    );
    for (index, input) in inputs().iter().enumerate() {
        engine.forward(&train(index as u32), vec![input.shallow_clone()]).unwrap();
        let (batch_mean, batch_var) = statistics(input);
        mean = mean * 0.75 + batch_mean * 0.25;
        var = var * 0.75 + batch_var * 0.25;
    }
    let [input, _] = inputs();
    let output = engine.forward(&eval(), vec![input.shallow_clone()]).unwrap().remove(0);
    let state: HashMap<String, Tensor> = engine.state().unwrap().into_iter().collect();
    assert_close(&state["0.running_mean"], &mean);
    assert_close(&state["0.running_var"], &var);
    assert_eq!(state["0.num_batches_tracked"].int64_value(&[]), 2);
    assert_eq!(state["0.num_batches_tracked"].kind(), Kind::Int64);
    let expected = (input - mean.view([1, 3, 1, 1])) / (var.view([1, 3, 1, 1]) + 1e-5).sqrt();
    assert_close(&output, &expected);
}

#[test]
fn without_momentum_the_statistics_are_averages() {
    let mut engine = engine(&model(", momentum: null"));
    for (index, input) in inputs().iter().enumerate() {
        engine.forward(&train(index as u32), vec![input.shallow_clone()]).unwrap();
    }
    let ((mean_a, var_a), (mean_b, var_b)) = (statistics(&inputs()[0]), statistics(&inputs()[1]));
    let state: HashMap<String, Tensor> = engine.state().unwrap().into_iter().collect();
    assert_close(&state["0.running_mean"], &((mean_a + mean_b) / 2.0));
    assert_close(&state["0.running_var"], &((var_a + var_b) / 2.0));
}

#[test]
fn without_statistics_evaluation_normalises_over_its_batch() {
    let mut engine = engine(&model(", track_running_stats: false, affine: false"));
    assert!(engine.state().unwrap().is_empty());
    let [input, _] = inputs();
    let trained = engine.forward(&train(0), vec![input.shallow_clone()]).unwrap().remove(0);
    let evaluated = engine.forward(&eval(), vec![input]).unwrap().remove(0);
    assert!(trained.equal(&evaluated));
}

#[test]
fn a_second_microbatch_before_backward_does_not_disturb_the_first() {
    let gradients = |interleaved: bool| {
        let mut engine = engine(&model(""));
        let [a, b] = inputs();
        let ones = || vec![vec![normal("grad", &[4, 3, 2, 2])]];
        engine.forward(&train(0), vec![a]).unwrap();
        if interleaved {
            engine.forward(&train(1), vec![b]).unwrap();
        }
        engine.backward(key(0), ones()).unwrap();
        copies(engine.gradients())
    };
    assert_same(&gradients(true), &gradients(false), "gradients");
}

#[test]
fn one_value_per_channel_is_refused_as_in_pytorch() {
    let mut engine = engine(
        "
model: norm
inputs: {x: [batch, 3, 1, 1]}
layers: [BatchNorm2d: {num_features: 3}]
",
    );
    let error =
        engine.forward(&train(0), vec![normal("x", &[1, 3, 1, 1])]).unwrap_err().to_string();
    assert!(error.contains("more than one value per channel"), "{error}");
    engine.forward(&eval(), vec![normal("x", &[1, 3, 1, 1])]).unwrap();
}
