//! Compares the backward pass layer by layer with libtorch's own backward pass through the whole
//! graph.

use super::models::{CONV, RESIDUAL};
use super::*;
use layerspec::LayerKind;

/// The gradients of `loss.backward()`, with all layers in one graph.
fn by_whole_graph(
    engine: &Engine,
    microbatches: &[(Tensor, Tensor)],
    loss: &LossSpec,
) -> Vec<(String, Tensor)> {
    let leaf = |param: &Tensor, trained| param.detach().set_requires_grad(trained);
    let params: Vec<Tensor> =
        engine.params.params().all.iter().map(|param| leaf(&param.tensor, param.trained)).collect();
    let total: i64 = microbatches.iter().map(|(input, _)| input.size()[0]).sum();
    for (index, (input, target)) in microbatches.iter().enumerate() {
        let mut values = HashMap::from([(engine.stage().inputs[0].value, input.shallow_clone())]);
        for (place, layer) in engine.stage().layers.iter().enumerate() {
            let inputs: Vec<&Tensor> = layer.inputs.iter().map(|value| &values[value]).collect();
            let bindings = engine.params.params().bindings[place].iter();
            let own: HashMap<&str, &Tensor> =
                bindings.map(|own| (own.name, &params[own.index])).collect();
            let mask =
                || Key::new(11).text("dropout").number(1).number(index as u64).text(&layer.name);
            let output = apply(&layer.kind, &inputs, &own, mask);
            values.insert(layer.outputs[0], output);
        }
        let prediction = &values[&engine.stage().outputs[0]];
        let loss = match loss {
            LossSpec::MSELoss => prediction.mse_loss(target, tch::Reduction::Mean),
            LossSpec::CrossEntropyLoss { label_smoothing, .. } => prediction
                .cross_entropy_loss::<Tensor>(
                    target,
                    None,
                    tch::Reduction::Mean,
                    -100,
                    *label_smoothing,
                ),
            other => panic!("no case here has the loss {other}"),
        };
        (loss * (input.size()[0] as f64 / total as f64)).backward();
    }
    let trained = engine.params.params().all.iter().zip(&params).filter(|(param, _)| param.trained);
    trained.map(|(param, leaf)| (param.name.clone(), leaf.grad())).collect()
}

/// Computes a layer with functions that autograd knows.
fn apply(
    kind: &LayerKind,
    inputs: &[&Tensor],
    own: &HashMap<&str, &Tensor>,
    mask: impl Fn() -> Key,
) -> Tensor {
    let (x, weight, bias) = (inputs[0], own.get("weight").copied(), own.get("bias").copied());
    let sizes = |sizes: &[u64]| sizes.iter().map(|size| size.cast_signed()).collect::<Vec<_>>();
    match kind {
        LayerKind::Linear(linear) if !linear.transposed => x.linear(weight.unwrap(), bias),
        LayerKind::ReLU(_) => x.relu(),
        LayerKind::Tanh(_) => x.tanh(),
        LayerKind::GELU(_) => x.gelu("none"),
        LayerKind::Add(_) => inputs[1..].iter().fold(x.shallow_clone(), |sum, other| sum + *other),
        LayerKind::LayerNorm(layer) => {
            x.layer_norm(sizes(&layer.normalized_shape), weight, bias, layer.eps, true)
        }
        LayerKind::Embedding(_) => Tensor::embedding(weight.unwrap(), x, -1, false, false),
        LayerKind::Conv2d(_) => x.conv2d(weight.unwrap(), bias, [1, 1], [1, 1], [1, 1], 1),
        LayerKind::BatchNorm2d(layer) => {
            let none: Option<&Tensor> = None;
            x.batch_norm(weight, bias, none, none, true, 0.1, layer.eps, true)
        }
        LayerKind::MaxPool2d(_) => x.max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false),
        LayerKind::AvgPool2d(_) => x.avg_pool2d([2, 2], [2, 2], [0, 0], false, true, None),
        LayerKind::Flatten(_) => x.flatten(1, -1),
        LayerKind::Dropout(layer) => {
            let keep = 1.0 - layer.p;
            let mask = mask()
                .stream(Device::Cpu)
                .unwrap()
                .bernoulli_mask(&x.size(), Kind::Float, keep)
                .unwrap();
            x * (mask / keep)
        }
        other => panic!("{} is in none of these models; write it here", other.name()),
    }
}

fn by_layer(
    engine: &mut Engine,
    microbatches: &[(Tensor, Tensor)],
    loss: &LossSpec,
) -> Vec<(String, Tensor)> {
    let total: i64 = microbatches.iter().map(|(input, _)| input.size()[0]).sum();
    for (index, (input, target)) in microbatches.iter().enumerate() {
        let pass = train(index as u32);
        let outputs = engine.forward(&pass, vec![input.shallow_clone()]).unwrap();
        let weight = input.size()[0] as f64 / total as f64;
        let task = LossInputs { output: 0, prediction: &outputs[0], target, loss, weight };
        engine.loss(pass.key, &task, Mode::Train).unwrap();
        engine.backward(pass.key, vec![vec![]]).unwrap();
    }
    copies(engine.gradients())
}

fn same_bits(yaml: &str, microbatches: &[(Tensor, Tensor)], loss: &LossSpec) {
    let build = || build(whole(&graph(yaml), false)).unwrap();
    let ours = by_layer(&mut build(), microbatches, loss);
    assert!(ours.iter().all(|(_, grad)| grad.abs().sum(Kind::Float).double_value(&[]) > 0.0));
    assert_same(&ours, &by_whole_graph(&build(), microbatches, loss), "gradients");
}

fn classes(name: &str, shape: &[i64], count: i64) -> Tensor {
    (normal(name, shape) * 100.0).to_kind(Kind::Int64).abs().remainder(count)
}

#[test]
fn a_residual_model_has_the_gradients_of_the_whole_graph() {
    let microbatch = |name: &str, size| {
        (normal(name, &[size, 3]), normal(&format!("{name} target"), &[size, 2]))
    };
    same_bits(RESIDUAL, &[microbatch("a", 4), microbatch("b", 3)], &LossSpec::MSELoss);
}

#[test]
fn a_conv_net_has_the_gradients_of_the_whole_graph() {
    let microbatch = |name: &str, size| (normal(name, &[size, 1, 8, 8]), classes(name, &[size], 5));
    same_bits(
        CONV,
        &[microbatch("a", 4), microbatch("b", 3)],
        &LossSpec::CrossEntropyLoss { classes: Classes::default(), label_smoothing: 0.1 },
    );
}

/// Without strided views between the layers, for which the whole graph picks other kernels.
const TIED: &str = "
model: tied
inputs: {ids: {shape: [batch], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 13, embedding_dim: 8}
    name: embedding
  - Linear: {in_features: 8, out_features: 8}
  - GELU
  - LayerNorm: {normalized_shape: 8}
  - Linear: {in_features: 8, out_features: 13, bias: false}
    name: head
    share: embedding
";

/// Only one microbatch: over several, the engine first adds each layer's gradients, and autograd
/// each microbatch's.
#[test]
fn tied_parameters_have_the_gradients_of_the_whole_graph() {
    let microbatch = (classes("a", &[40], 13), classes("a target", &[40], 13));
    same_bits(TIED, &[microbatch], &LossSpec::cross_entropy());
}
