//! User-defined layers: compared with PyTorch, recomputed, and refused.

use super::*;
use bytes::Bytes;
use layerspec::LayerKind;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensor::TensorError;

const MODEL: &str = "
inputs: {x: [batch, 8], y: [batch, 8]}
layers:
  - TorchScript:
      path: NAME.pt
      params:
        scale: []
        norm.weight: [8]
        norm.bias: [8]
        inner.0.weight: [12, 8]
        inner.0.bias: [12]
        inner.2.weight: [8, 12]
      out: [[batch, 8], [batch]]
    name: it
    in_variables: [y]
    out_variables: [a, b]
outputs: [a, b]
";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/own")
}

/// A stage, and the custom layers of its worker.
struct CustomStage {
    stage: StageConfig,
    custom_layers: CustomLayers,
}

impl CustomStage {
    fn build(self) -> Result<Engine, EngineError> {
        Engine::build(self.stage, &self.custom_layers)
    }

    fn refusal(self) -> String {
        self.build().unwrap_err().to_string()
    }
}

/// The stage of a model with one TorchScript layer, on a worker that runs it.
fn script(yaml: &str, name: &str) -> CustomStage {
    let mut stage = whole(&graph(&yaml.replace("NAME", name)), true);
    let LayerKind::TorchScript(layer) = &mut stage.layers[0].kind else { panic!("no script") };
    layer.sha256 = Some("hash".into());
    let file = Bytes::from(std::fs::read(folder().join(format!("{name}.pt"))).unwrap());
    let mut custom_layers = CustomLayers::default().with_torchscript(TorchScriptPolicy::Allowed);
    custom_layers.set_files(BTreeMap::from([("hash".to_owned(), file)]));
    CustomStage { stage, custom_layers }
}

#[test]
fn a_torchscript_module_computes_what_pytorch_does() {
    let read = Tensor::read_safetensors(folder().join("plain.safetensors")).unwrap();
    let recorded: BTreeMap<String, Tensor> = read.into_iter().collect();
    let of = |name: &str| recorded[name].copy();
    let mut engine = script(MODEL, "plain").build().unwrap();
    for (name, tensor) in engine.state().unwrap() {
        assert!(
            tensor.equal(&recorded[&name.replacen("it.", "state.", 1)]),
            "{name} begins with another value"
        );
    }
    let outputs = engine.forward(&train(0), vec![of("input.0"), of("input.1")]).unwrap();
    let grads = engine.backward(key(0), vec![vec![of("grad.0")], vec![of("grad.1")]]).unwrap();
    let named = |sort: &'static str| {
        move |(port, tensor): (usize, Tensor)| (format!("{sort}.{port}"), tensor)
    };
    let params = copies(engine.gradients()).into_iter();
    let found = outputs.into_iter().enumerate().map(named("output"));
    let found = found.chain(grads.into_iter().flatten().enumerate().map(named("input_grad")));
    let found =
        found.chain(params.map(|(name, grad)| (name.replacen("it.", "param_grad.", 1), grad)));
    let mut compared = 0;
    for (name, tensor) in found {
        assert!(
            tensor.allclose(&recorded[&name], 1e-5, 1e-6, false),
            "{name}: {tensor} {}",
            recorded[&name]
        );
        compared += 1;
    }
    assert_eq!(compared, 2 + 2 + 6);
}

/// The module drops out, so its random numbers must come again.
#[test]
fn in_halves_and_computed_again_a_module_has_the_same_bits() {
    let run = |halves: bool, recompute| {
        let mut stage = script(MODEL, "block");
        stage.stage.layers[0].recompute = Some(recompute);
        let mut engine = stage.build().unwrap();
        let mut all: Vec<(String, Tensor)> = Vec::new();
        for index in 0..3 {
            let inputs = ["x", "y"].map(|name| normal(&format!("{name} {index}"), &[5, 8]));
            let outputs = engine.forward(&train(index), inputs.into()).unwrap();
            all.extend(
                outputs
                    .into_iter()
                    .enumerate()
                    .map(|(port, output)| (format!("{index} {port}"), output)),
            );
        }
        for index in 0..3 {
            let grads = vec![vec![normal("a", &[5, 8])], vec![normal("b", &[5])]];
            let grads = match halves {
                true => engine.backward_input(key(index), grads),
                false => engine.backward(key(index), grads),
            };
            all.extend(
                grads.unwrap().into_iter().flatten().map(|grad| (format!("{index} grad"), grad)),
            );
            if halves {
                engine.backward_weight(key(index)).unwrap();
            }
        }
        all.extend(copies(engine.gradients()));
        all
    };
    let plain = run(false, Recompute::None);
    let (first, second) = (&plain[0].1, &plain[2].1);
    assert_ne!(first.eq(0.0).sum(Kind::Int64).int64_value(&[]), 0, "nothing was dropped");
    assert!(!first.eq(0.0).equal(&second.eq(0.0)), "each microbatch drops other elements");
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        assert_same(&run(true, recompute), &plain, &format!("{recompute:?}"));
    }
}

#[test]
fn a_module_is_refused_where_it_is_not_allowed_or_not_as_declared() {
    let said =
        CustomStage { custom_layers: CustomLayers::default(), ..script(MODEL, "block") }.refusal();
    assert!(
        said.starts_with("layer it (TorchScript), initialisation: block.pt: it is a program"),
        "{said}"
    );
    assert!(said.contains("--allow-torchscript"), "{said}");

    let fewer = MODEL.replace("        norm.bias: [8]\n", "");
    let said = script(&fewer, "block").refusal();
    assert!(
        said.contains(
            "write in the model file `params: {scale: [], norm.weight: [8], norm.bias: [8]"
        ),
        "{said}"
    );

    let mut stage = script(MODEL, "block");
    stage
        .custom_layers
        .set_files(BTreeMap::from([("hash".to_owned(), Bytes::from_static(b"no module"))]));
    let said = stage.refusal();
    assert!(said.contains("loading a TorchScript file"), "{said}");

    let mut engine = script(&MODEL.replace("[batch]]", "[batch, 1]]"), "block").build().unwrap();
    let said = engine
        .forward(&train(0), vec![normal("x", &[5, 8]), normal("y", &[5, 8])])
        .unwrap_err()
        .to_string();
    assert!(said.contains("made float32 [5], the model file says float32 [batch, 1]"), "{said}");
}

#[test]
fn a_module_that_writes_to_its_buffers_is_refused() {
    let yaml = "{inputs: {x: [batch, 4]}, layers: [{TorchScript: {path: NAME.pt}}]}";
    let mut engine = script(yaml, "running").build().unwrap();
    let said = engine.forward(&train(0), vec![normal("x", &[5, 4])]).unwrap_err().to_string();
    assert!(said.contains("writes to the buffer `norm."), "{said}");
    engine.forward(&eval(), vec![normal("x", &[5, 4])]).unwrap();
}

/// Its attribute is a number in training and a list in evaluation.
#[test]
fn a_module_that_changes_its_attributes_is_refused() {
    let yaml = "{inputs: {x: [batch, 4]}, layers: [{TorchScript: {path: NAME.pt}}]}";
    let forward = |pass: &Pass| {
        let mut engine = script(yaml, "counting").build().unwrap();
        engine.forward(pass, vec![normal("x", &[5, 4])]).unwrap_err().to_string()
    };
    let said = forward(&train(0));
    assert!(
        said.contains("layer 0 (TorchScript)")
            && said.contains("changes the attribute `inner.calls`"),
        "{said}"
    );
    let said = forward(&eval());
    assert!(said.contains("changes the attribute `seen`"), "{said}");
}

/// The weighted sum of the inputs, and their number.
struct Weighted;

impl CustomLayer for Weighted {
    fn forward(&self, ctx: &ForwardContext<'_>) -> Result<Vec<Tensor>, TensorError> {
        let weights = ctx.param("weights")?;
        let terms = ctx
            .inputs()
            .iter()
            .enumerate()
            .map(|(port, input)| Ok(input.f_mul(&weights.f_select(0, port as i64)?)?));
        let terms: Vec<Tensor> = terms.collect::<Result<_, TensorError>>()?;
        Ok(vec![Tensor::f_stack(&terms, 0)?.f_sum_dim_intlist(0, false, None)?])
    }
}

const CUSTOM: &str = "
inputs: {x: [batch, 3], y: [batch, 3]}
layers:
  - Custom: {layer: Weighted, args: {strict: true}, params: {weights: {shape: [2], init: {uniform: \
                      [1, 2]}}}}
    in_variables: [y]
";

fn custom(yaml: &str, custom_layers: CustomLayers) -> Result<Engine, EngineError> {
    Engine::build(whole(&graph(yaml), true), &custom_layers)
}

#[test]
fn a_layer_in_rust_goes_back_by_autograd() {
    let custom_layers =
        CustomLayers::default().with("Weighted", |args| args.flag("strict").map(|_| Weighted));
    let mut engine = custom(CUSTOM, custom_layers).unwrap();
    let (x, y, grad) = (normal("x", &[5, 3]), normal("y", &[5, 3]), normal("g", &[5, 3]));
    let weights = engine.state().unwrap().remove(0).1;
    assert!(weights.min().double_value(&[]) >= 1.0 && weights.max().double_value(&[]) <= 2.0);
    let output = engine.forward(&train(0), vec![x.copy(), y.copy()]).unwrap().remove(0);
    assert!(output.allclose(&(&x * weights.get(0) + &y * weights.get(1)), 1e-6, 0.0, false));
    let of_inputs = engine.backward(key(0), vec![vec![grad.copy()]]).unwrap();
    assert!(of_inputs[1][0].allclose(&(&grad * weights.get(1)), 1e-6, 0.0, false));
    let of_weights = copies(engine.gradients()).remove(0).1;
    assert!(of_weights.get(0).allclose(&(&grad * &x).sum(Kind::Float), 1e-5, 1e-6, false));
}

#[test]
fn a_layer_in_rust_that_is_missing_or_wrong_is_named() {
    let said = custom(CUSTOM, CustomLayers::default()).unwrap_err().to_string();
    assert!(
        said.contains(
            "layer 0 (Custom), initialisation: the own layer `Weighted`: this worker was built"
        ),
        "{said}"
    );
    let custom_layers =
        CustomLayers::default().with("Weighted", |args| args.known(&["eps"]).map(|()| Weighted));
    let said = custom(CUSTOM, custom_layers).unwrap_err().to_string();
    assert!(said.ends_with("unknown argument `strict`: expected one of eps"), "{said}");

    struct Panics;
    impl CustomLayer for Panics {
        fn forward(&self, ctx: &ForwardContext<'_>) -> Result<Vec<Tensor>, TensorError> {
            Ok(vec![ctx.input(0)?.reshape([7, 7])])
        }
    }
    let custom_layers = CustomLayers::default().with("Weighted", |_| Ok(Panics));
    let mut engine = custom(CUSTOM, custom_layers).unwrap();
    let said = engine
        .forward(&train(0), vec![normal("x", &[5, 3]), normal("y", &[5, 3])])
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("layer 0 (Custom), forward") && said.contains("its code panicked"),
        "{said}"
    );
}

/// Named dimensions have the sizes of the inputs, not those of another batch or another input.
#[test]
fn what_a_layer_makes_is_held_against_the_model_file() {
    struct Makes(Vec<i64>, Kind);
    impl CustomLayer for Makes {
        fn forward(&self, ctx: &ForwardContext<'_>) -> Result<Vec<Tensor>, TensorError> {
            Ok(vec![Tensor::f_zeros(&self.0, (self.1, ctx.device()))?])
        }
    }
    let yaml = "{inputs: {x: [batch, 3], y: [batch, seq]}, layers: [{Custom: {layer: Makes, out: \
                [batch, seq]}, in_variables: [y], name: mine}]}";
    let made = |shape: &[i64], kind| {
        let shape = shape.to_vec();
        let custom_layers =
            CustomLayers::default().with("Makes", move |_| Ok(Makes(shape.clone(), kind)));
        let mut engine = custom(yaml, custom_layers).unwrap();
        let outputs = engine.forward(&eval(), vec![normal("x", &[5, 3]), normal("y", &[5, 7])]);
        outputs.map(|outputs| outputs[0].size()).map_err(|error| error.to_string())
    };
    assert_eq!(made(&[5, 7], Kind::Float), Ok(vec![5, 7]));
    let said = "the model file says float32 [batch, seq], batch is 5 here, seq is 7 here";
    for (shape, kind) in [
        (&[4, 7][..], Kind::Float),
        (&[5, 3], Kind::Float),
        (&[5, 7, 1], Kind::Float),
        (&[5, 7], Kind::Double),
    ] {
        let error = made(shape, kind).unwrap_err();
        assert!(error.contains("layer mine (Custom), forward") && error.contains(said), "{error}");
    }
}
