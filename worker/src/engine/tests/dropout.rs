use super::*;

const MODEL: &str = "
model: dropout
inputs: {x: [batch, 50]}
layers:
  - Dropout: {p: 0.25}
    name: one
  - Dropout: {p: 0.25}
    name: two
    input: x
";

fn drop(pass: &Pass) -> Tensor {
    let mut model = whole(&graph(MODEL), true);
    model.outputs = model.layers.iter().flat_map(|layer| layer.outputs.clone()).collect();
    let mut outputs = build(model)
        .unwrap()
        .forward(pass, vec![Tensor::ones([40, 50], (Kind::Float, Device::Cpu))]);
    outputs.as_mut().unwrap().swap_remove(0)
}

#[test]
fn what_is_dropped_depends_on_step_microbatch_and_layer() {
    let first = drop(&train(0));
    assert!(first.equal(&drop(&train(0))));
    assert!(first.equal(&drop(&Pass { key: MicrobatchKey { batch: 9, index: 0 }, ..train(0) })));
    assert!(!first.equal(&drop(&train(1))));
    assert!(!first.equal(&drop(&Pass { step: 2, ..train(0) })));

    let mut model = whole(&graph(MODEL), true);
    model.outputs = model.layers.iter().flat_map(|layer| layer.outputs.clone()).collect();
    let input = Tensor::ones([40, 50], (Kind::Float, Device::Cpu));
    let outputs = build(model).unwrap().forward(&train(0), vec![input]).unwrap();
    assert!(!outputs[0].equal(&outputs[1]));
}

#[test]
fn what_is_kept_is_scaled_and_its_gradient_too() {
    let mut engine = engine(
        "
model: dropout
inputs: {x: [batch, 50]}
layers: [Dropout: {p: 0.25}]
",
    );
    let input = normal("x", &[40, 50]);
    let output = engine.forward(&train(0), vec![input.shallow_clone()]).unwrap().remove(0);
    let kept = output.not_equal(0.0).to_kind(Kind::Float);
    let share = kept.mean(Kind::Float).double_value(&[]);
    assert!((share - 0.75).abs() < 0.03, "{share}");
    assert!(output.allclose(&(&input * &kept / 0.75), 1e-6, 0.0, false));
    let grad =
        engine.backward(key(0), vec![vec![Tensor::ones_like(&input)]]).unwrap().remove(0).remove(0);
    assert!(grad.allclose(&(kept / 0.75), 1e-6, 0.0, false));
    assert!(engine.forward(&eval(), vec![input.shallow_clone()]).unwrap()[0].equal(&input));
}

#[test]
fn everything_may_be_dropped() {
    let mut engine = engine(
        "
model: dropout
inputs: {x: [batch, 5]}
layers: [Dropout: {p: 1.0}]
",
    );
    let output = engine.forward(&train(0), vec![normal("x", &[4, 5])]).unwrap().remove(0);
    assert_eq!(output.abs().sum(Kind::Float).double_value(&[]), 0.0);
}

#[test]
fn whole_channels_are_dropped() {
    let mut engine = engine(
        "
model: dropout
inputs: {x: [batch, 30, 2, 3]}
layers: [Dropout2d: {p: 0.25}]
",
    );
    let input = Tensor::ones([20, 30, 2, 3], (Kind::Float, Device::Cpu));
    let output = engine.forward(&train(0), vec![input]).unwrap().remove(0);
    let of_channels = output.mean_dim(&[2i64, 3][..], true, Kind::Float);
    assert!(output.equal(&of_channels.expand_as(&output)), "a channel is dropped in parts");
    let share = output.not_equal(0.0).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
    assert!((share - 0.75).abs() < 0.06, "{share}");
    let grad = engine.backward(key(0), vec![vec![output.ones_like()]]).unwrap().remove(0).remove(0);
    assert!(grad.equal(&output));
}

#[test]
fn whole_samples_are_dropped_each_or_all() {
    let drop = |mode: &str, pass: &Pass| {
        let mut engine = engine(&format!(
            "
model: dropout
inputs: {{x: [batch, 3, 2]}}
layers: [DropPath: {{p: 0.25{mode}}}]
"
        ));
        let input = Tensor::ones([400, 3, 2], (Kind::Float, Device::Cpu));
        let output = engine.forward(pass, vec![input]).unwrap().remove(0);
        if pass.mode == Mode::Train {
            let grads = engine.backward(key(pass.key.index), vec![vec![output.ones_like()]]);
            assert!(grads.unwrap()[0][0].equal(&output));
        }
        output
    };
    let output = drop("", &train(0));
    let of_samples = output.mean_dim(&[1i64, 2][..], true, Kind::Float);
    assert!(output.equal(&of_samples.expand_as(&output)), "a sample is dropped in parts");
    let share = output.not_equal(0.0).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
    assert!((share - 0.75).abs() < 0.08, "{share}");
    let largest = output.max().double_value(&[]);
    assert!((largest - 1.0 / 0.75).abs() < 1e-6, "{largest}");
    assert!(output.equal(&drop(", mode: row", &train(0))));
    assert!(!output.equal(&drop("", &train(1))));

    let mut kept = 0;
    for index in 0..40 {
        let output = drop(", mode: batch", &train(index));
        let first = output.double_value(&[0, 0, 0]);
        assert!(output.equal(&output.full_like(first)), "samples are dropped apart");
        kept += u32::from(first > 0.0);
    }
    assert!((20..40).contains(&kept), "{kept}");
    let evaluated = drop("", &eval());
    assert!(evaluated.equal(&evaluated.ones_like()));
}

#[test]
fn scaled_dot_products_drop_in_training_alone() {
    for causal in [false, true] {
        let mut engine = engine(&format!(
            "
model: attention
inputs: {{x: [batch, 2, 6, 4]}}
layers:
  - ScaledDotProductAttention: {{dropout_p: 0.5, is_causal: {causal}}}
    in_variables: [x, x]
"
        ));
        let mut run =
            |pass: Pass| engine.forward(&pass, vec![normal("x", &[3, 2, 6, 4])]).unwrap().remove(0);
        let (dropped, kept) = (run(train(0)), run(eval()));
        assert!(!dropped.allclose(&kept, 1e-3, 1e-3, false));
        assert!(!dropped.equal(&run(train(1))));
        assert!(kept.equal(&run(eval())));
        // The first query of a causal attention has one weight, which is 1 before dropout.
        let first = (dropped.select(2, 0), normal("x", &[3, 2, 6, 4]).select(2, 0));
        let ratio = (first.0 / first.1).round();
        let expected = ratio.eq(0.0).logical_or(&ratio.eq(2.0)).all().int64_value(&[]) == 1;
        assert_eq!(causal, expected, "{ratio:?}");
    }
}

/// Dropout acts only between the layers, with another mask for each layer. With everything dropped,
/// the second layer receives zeros, and the first layer's state does not change.
#[test]
fn recurrent_layers_drop_what_goes_from_one_to_the_next() {
    let lstm = |p: f64| {
        let layer = format!(
            "LSTM: {{input_size: 3, hidden_size: 4, num_layers: 2, batch_first: true, dropout: \
             {p}}}"
        );
        let mut engine =
            engine(&format!("model: lstm\ninputs: {{x: [batch, 5, 3]}}\nlayers:\n  - {layer}\n"));
        engine.forward(&train(0), vec![normal("x", &[2, 5, 3])]).unwrap()
    };
    let (plain, half, none) = (lstm(0.0), lstm(0.5), lstm(1.0));
    for state in [1, 2] {
        assert!(half[state].select(0, 0).equal(&none[state].select(0, 0)));
        assert!(half[state].select(0, 0).allclose(&plain[state].select(0, 0), 1e-6, 1e-6, false));
        assert!(!half[state].select(0, 1).allclose(&plain[state].select(0, 1), 1e-3, 1e-3, false));
    }
    let other_samples = none[0].select(0, 0).equal(&none[0].select(0, 1));
    assert!(other_samples, "samples that nothing comes from look alike");
    assert!(lstm(0.5)[0].equal(&half[0]));
}

#[test]
fn attention_weights_are_dropped_in_training_alone() {
    let layer = "MultiheadAttention: {embed_dim: 4, num_heads: 2, dropout: 0.5, batch_first: \
                 true, is_causal: true}";
    let mut engine =
        engine(&format!("model: attention\ninputs: {{x: [batch, 6, 4]}}\nlayers:\n  - {layer}\n"));
    let mut run =
        |pass: Pass| engine.forward(&pass, vec![normal("x", &[2, 6, 4])]).unwrap().remove(0);
    let (dropped, kept) = (run(train(0)), run(eval()));
    assert!(!dropped.allclose(&kept, 1e-3, 1e-3, false));
    assert!(!dropped.equal(&run(train(1))));
    assert!(kept.equal(&run(eval())));
}
