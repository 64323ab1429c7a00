//! Going back layer by layer against libtorch's own backward through the whole graph.

use super::super::modules::{module, Call};
use super::models::{CONV, RESIDUAL};
use super::*;

/// The gradients that `loss.backward()` gives, layers joined in one graph.
fn by_whole_graph(engine: &Engine, microbatches: &[(Tensor, Tensor)], loss: LossSpec) -> Vec<(String, Tensor)> {
    let total: i64 = microbatches.iter().map(|(input, _)| input.size()[0]).sum();
    for (index, (input, target)) in microbatches.iter().enumerate() {
        let pass = train(index as u32);
        let mut values = HashMap::from([(engine.stage.inputs[0].value, input.shallow_clone())]);
        for (place, layer) in engine.stage.layers.iter().enumerate() {
            let inputs: Vec<Tensor> = layer.inputs.iter().map(|value| values[value].shallow_clone()).collect();
            let outputs = module(&layer.kind).forward(&Call::new(engine, place, &pass, &inputs)).unwrap();
            values.extend(layer.outputs.iter().copied().zip(outputs));
        }
        let prediction = &values[&engine.stage.outputs[0]];
        let loss = match loss {
            LossSpec::MSELoss => prediction.mse_loss(target, tch::Reduction::Mean),
            LossSpec::CrossEntropyLoss { label_smoothing } => {
                prediction.cross_entropy_loss::<Tensor>(target, None, tch::Reduction::Mean, -100, label_smoothing)
            }
        };
        (loss * (input.size()[0] as f64 / total as f64)).backward();
    }
    let trained = engine.params.all.iter().filter(|param| param.trained);
    trained.map(|param| (param.name.clone(), param.tensor.grad())).collect()
}

fn by_layer(engine: &mut Engine, microbatches: &[(Tensor, Tensor)], loss: LossSpec) -> Vec<(String, Tensor)> {
    let total: i64 = microbatches.iter().map(|(input, _)| input.size()[0]).sum();
    for (index, (input, target)) in microbatches.iter().enumerate() {
        let pass = train(index as u32);
        let outputs = engine.forward(&pass, vec![input.shallow_clone()]).unwrap();
        let weight = input.size()[0] as f64 / total as f64;
        let task = LossTask { output: 0, prediction: &outputs[0], target, loss, weight };
        engine.loss(pass.key, &task, Mode::Train).unwrap();
        engine.backward(pass.key, vec![vec![]]).unwrap();
    }
    copies(engine.gradients())
}

fn same_bits(yaml: &str, microbatches: &[(Tensor, Tensor)], loss: LossSpec) {
    let build = || Engine::build(whole(&graph(yaml), false)).unwrap();
    let ours = by_layer(&mut build(), microbatches, loss);
    assert!(ours.iter().all(|(_, grad)| grad.abs().sum(Kind::Float).double_value(&[]) > 0.0));
    assert_same(&ours, &by_whole_graph(&build(), microbatches, loss), "gradients");
}

fn classes(name: &str, shape: &[i64], count: i64) -> Tensor {
    (normal(name, shape) * 100.0).to_kind(Kind::Int64).abs().remainder(count)
}

#[test]
fn a_residual_model_has_the_gradients_of_the_whole_graph() {
    let microbatch = |name: &str, size| (normal(name, &[size, 3]), normal(&format!("{name} target"), &[size, 2]));
    same_bits(RESIDUAL, &[microbatch("a", 4), microbatch("b", 3)], LossSpec::MSELoss);
}

#[test]
fn a_conv_net_has_the_gradients_of_the_whole_graph() {
    let microbatch = |name: &str, size| (normal(name, &[size, 1, 8, 8]), classes(name, &[size], 5));
    same_bits(CONV, &[microbatch("a", 4), microbatch("b", 3)], LossSpec::CrossEntropyLoss { label_smoothing: 0.1 });
}

/// Without strided views between the layers: there the whole graph picks other kernels.
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

#[test]
fn tied_parameters_have_the_gradients_of_the_whole_graph() {
    let microbatch = |name: &str, size| (classes(name, &[size], 13), classes(&format!("{name} target"), &[size], 13));
    let microbatches = [microbatch("a", 40), microbatch("b", 30), microbatch("c", 40)];
    same_bits(TIED, &microbatches, LossSpec::cross_entropy());
}
