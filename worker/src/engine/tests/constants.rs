//! Layers that give a tensor of a file.

use super::*;
use bytes::Bytes;
use layerspec::LayerKind;
use std::collections::BTreeMap;

/// The model as one stage. Its constants have these bytes, by the names of their tensors.
fn build_with(yaml: &str, files: &[(&str, Bytes)]) -> Result<Engine, EngineError> {
    recomputing(yaml, files, Recompute::None)
}

fn recomputing(
    yaml: &str,
    files: &[(&str, Bytes)],
    recompute: Recompute,
) -> Result<Engine, EngineError> {
    let mut stage = whole(&graph(yaml), true);
    for layer in &mut stage.layers {
        layer.recompute = Some(recompute);
        if let LayerKind::Constant(constant) = &mut layer.kind {
            constant.sha256 = Some(constant.tensor.clone());
        }
    }
    let mut custom_layers = CustomLayers::default();
    let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone()));
    custom_layers.set_files(files.collect::<BTreeMap<_, _>>());
    Engine::build(stage, &custom_layers)
}

fn floats(numbers: &[f32]) -> Bytes {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn integers(numbers: &[i64]) -> Bytes {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A constant that is used as it is and for each sample, and one that selects.
const MODEL: &str = "
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 3}
    out_variables: [y]
  - Constant: {path: c, tensor: row, shape: [1, 3], expand: true}
    out_variables: [rows]
  - Constant: {path: c, tensor: row, shape: [1, 3]}
    out_variables: [row]
  - Add: {}
    in_variables: [rows, y]
    out_variables: [sum]
  - Constant: {path: c, tensor: order, shape: 2, dtype: int64}
    input: y
    out_variables: [order]
  - Index: {dim: 1}
    input: sum
    in_variables: [order]
    out_variables: [selected]
outputs: [selected, rows, row]
";

#[test]
fn a_constant_is_itself_or_one_for_each_sample() {
    let files = [("row", floats(&[1.0, -2.0, 4.0])), ("order", integers(&[2, 0]))];
    for recompute in [Recompute::None, Recompute::Full] {
        let mut engine = recomputing(MODEL, &files, recompute).unwrap();
        let x = normal("x", &[4, 3]);
        let row = Tensor::from_slice(&[1.0f32, -2.0, 4.0]).reshape([1, 3]);
        let state: HashMap<String, Tensor> = engine.state().unwrap().into_iter().collect();
        assert_eq!(state.len(), 2, "a constant is no weight");
        let [weight, bias] = ["0.weight", "0.bias"].map(|name| &state[name]);
        let y = x.linear(weight, Some(bias));
        let sum = row.expand([4, 3], false) + &row + &y;
        let outputs = engine.forward(&train(0), vec![x.shallow_clone()]).unwrap();
        let selected = sum.index_select(1, &Tensor::from_slice(&[2i64, 0]));
        assert!(outputs[0].allclose(&selected, 1e-6, 1e-6, false));
        assert!(outputs[1].equal(&row.expand([4, 3], false)) && outputs[2].equal(&row));

        // The gradient of x is that of y, to which neither constant adds.
        let grad = normal("grad", &[4, 2]);
        let grads = vec![vec![grad.copy()], Vec::new(), Vec::new()];
        let grads = engine.backward(key(0), grads).unwrap();
        let of_y = Tensor::zeros([4, 3], (Kind::Float, Device::Cpu));
        let of_y = of_y.index_add(1, &Tensor::from_slice(&[2i64, 0]), &grad);
        assert!(grads[0][0].allclose(&of_y.matmul(weight), 1e-5, 1e-6, false));
        // It was not written to.
        let again = engine.forward(&eval(), vec![x]).unwrap();
        assert!(again[2].equal(&row) && again[0].equal(&outputs[0]));
    }
}

#[test]
fn the_layer_before_has_no_gradient_from_a_constant_alone() {
    let yaml = "
inputs: {x: [batch, 3]}
layers:
  - Linear: {in_features: 3, out_features: 3}
  - Constant: {path: c, tensor: row, shape: [1, 3], expand: true}
";
    let mut engine = build_with(yaml, &[("row", floats(&[1.0, 2.0, 3.0]))]).unwrap();
    engine.forward(&train(0), vec![normal("x", &[4, 3])]).unwrap();
    let grads = engine.backward(key(0), vec![vec![normal("grad", &[4, 3])]]).unwrap();
    assert!(grads[0].is_empty());
}

#[test]
fn bytes_that_do_not_fit_are_refused() {
    let yaml = "{inputs: {x: [batch, 3]}, layers: [{Constant: {path: c.safetensors, tensor: t, \
                shape: [1, 3], dtype: bool}, name: mask}]}";
    let refused = |files: &[(&str, Bytes)]| build_with(yaml, files).unwrap_err().to_string();
    let said = refused(&[]);
    assert!(
        said.starts_with("layer mask (Constant), initialisation: c.safetensors: the boss has not"),
        "{said}"
    );
    let said = refused(&[("t", Bytes::from_static(&[0, 1]))]);
    assert!(said.contains("layer mask (Constant)"), "{said}");
    let said = refused(&[("t", Bytes::from_static(&[0, 1, 2]))]);
    assert!(said.contains("a byte is neither 0 nor 1"), "{said}");
}

/// A GPU would find it only when it computes.
#[test]
fn an_index_outside_its_table_is_refused_at_once() {
    let yaml = "
inputs: {x: [batch, 3]}
layers:
  - Parameter: {shape: [2, 3], expand: false}
    out_variables: [table]
  - Constant: {path: c, tensor: order, shape: [1, 2], dtype: int64}
  - Flatten: {start_dim: 0}
    out_variables: [order]
  - Index: {dim: 0}
    input: table
    in_variables: [order]
";
    assert!(build_with(yaml, &[("order", integers(&[1, 0]))]).is_ok());
    let error = build_with(yaml, &[("order", integers(&[1, 2]))]).unwrap_err().to_string();
    assert!(error.ends_with("id 2, but the dimension is 2: ids are 0 to 1"), "{error}");
}

/// In training they lie in the parameter's memory, as long as they are inside the stage.
#[test]
fn outputs_do_not_change_with_the_parameter_that_they_are() {
    let mut engine = engine(
        "
inputs: {x: [batch, 3]}
layers:
  - Parameter: {shape: [2, 3], std: 1, expand: false}
  - Flatten: {start_dim: 0}
",
    );
    engine.set_optimizer(OptimizerSpec::sgd(0.1));
    for pass in [train(0), eval()] {
        let output = engine.forward(&pass, vec![normal("x", &[4, 3])]).unwrap().remove(0);
        let before = output.copy();
        if pass.mode == Mode::Train {
            engine.backward(pass.key, vec![vec![Tensor::ones_like(&output)]]).unwrap();
        }
        let weight = &engine.params.params().all[0].tensor;
        let _same = tch::no_grad(|| weight.shallow_clone().fill_(7.0));
        assert!(output.equal(&before), "{:?}", pass.mode);
    }
    optim_step(&mut engine, 0.5).unwrap();
    let (_, weight) = engine.state().unwrap().remove(0);
    assert!(weight.equal(&weight.full_like(7.0 - 0.5)), "the gradient is that of the output");
}
