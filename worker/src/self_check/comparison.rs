//! Runs a layer on recorded tensors, and compares the results with the recorded ones.

use crate::engine::{CustomLayers, Engine, EngineError, Mode, Pass, StageConfig, StageInput};
use crate::self_check::records::{of, Named};
use layerspec::LayerGraph;
use pipeline::ids::MicrobatchKey;
use serde_json::{json, Map, Value as Json};
use std::collections::BTreeSet;
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// The rule of tests/oracle: sums in another order differ in the last bits of their largest term,
/// so a number near zero is compared as if it were `FLOOR`.
const RTOL: f64 = 1e-5;
/// The same for GPUs, whose attention is computed in other steps.
const RTOL_GPU: f64 = 3e-5;
/// The same for `RECURRENT` on CUDA: cuDNN's kernels for them approximate tanh and the sigmoid.
/// The largest error seen was 1.5e-4.
const RTOL_CUDNN_RECURRENT: f64 = 5e-4;
const RECURRENT: [&str; 3] = ["RNN", "GRU", "LSTM"];
const FLOOR: f64 = 1e-2;
/// A number below this share of its tensor's largest counts as this large, too. A sum that nearly
/// cancels, such as the gradient of keys' biases, is only as exact as its terms.
const SHARE: f64 = 0.1;

const KEY: MicrobatchKey = MicrobatchKey { batch: 1, index: 0 };

/// The largest errors that are right on a device.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Tolerances {
    /// Those of `RECURRENT`.
    pub(crate) recurrent: f64,
    /// Those of all other layers.
    pub(crate) others: f64,
}

impl Tolerances {
    pub(crate) fn of(device: Device) -> Self {
        match device {
            Device::Cpu => Tolerances { recurrent: RTOL, others: RTOL },
            Device::Cuda(_) => Tolerances { recurrent: RTOL_CUDNN_RECURRENT, others: RTOL_GPU },
            _ => Tolerances { recurrent: RTOL_GPU, others: RTOL_GPU },
        }
    }

    /// The largest error of a case that is right.
    pub(crate) fn for_case(self, case: &Json) -> f64 {
        match RECURRENT.into_iter().any(|kind| case["layer"].get(kind).is_some()) {
            true => self.recurrent,
            false => self.others,
        }
    }
}

/// A model of the case's layer. The outermost size of the first input, and of others with the same
/// size, is a named dimension.
///
/// # Errors
/// The case is not as tests/layers/README.md says.
pub(crate) fn model(case: &Json) -> Result<LayerGraph, TensorError> {
    let broken = |problem: String| TensorError::invalid("a recorded layer", problem);
    let given = case["inputs"].as_array().ok_or_else(|| broken(format!("no inputs: {case}")))?;
    let layer = case["layer"].as_object().ok_or_else(|| broken(format!("no layer: {case}")))?;
    let batch = given.first().and_then(|input| shape(input).first());
    let inputs = given.iter().enumerate();
    let inputs: Map<String, Json> =
        inputs.map(|(port, input)| (format!("x{port}"), declaration(input, batch))).collect();
    let mut layer = layer.clone();
    layer.insert("name".into(), "it".into());
    layer.insert("in_variables".into(), (1..given.len()).map(|port| format!("x{port}")).collect());
    // JSON is YAML.
    let yaml = json!({"inputs": inputs, "layers": [layer]}).to_string();
    LayerGraph::from_yaml(&yaml, "cases.json").map_err(|e| broken(e.to_string()))
}

fn shape(input: &Json) -> &[Json] {
    let shape = input.get("shape").unwrap_or(input).as_array();
    shape.map(Vec::as_slice).unwrap_or_default()
}

/// An input as a model file declares it.
fn declaration(input: &Json, batch: Option<&Json>) -> Json {
    let mut shape = shape(input).to_vec();
    if let Some(outermost) = shape.first_mut().filter(|size| Some(&**size) == batch) {
        *outermost = "batch".into();
    }
    let dtype = match input.get("dtype") {
        Some(dtype) => dtype.clone(),
        None => if input.get("below").is_some() { "int64" } else { "float32" }.into(),
    };
    json!({"shape": shape, "dtype": dtype})
}

/// The model as a stage whose inputs need their gradients.
pub(crate) fn stage(graph: &LayerGraph, device: Device) -> StageConfig {
    let inputs = graph.inputs().iter().map(|&value| StageInput {
        value,
        needs_grad: graph.value(value).ty.dtype.is_floating(),
        sum_here: true,
    });
    StageConfig {
        layers: graph.layers().to_vec(),
        inputs: inputs.collect(),
        outputs: graph.outputs().to_vec(),
        tied_copies: Vec::new(),
        tied_owners: Vec::new(),
        buckets: Vec::new(),
        shard_id: None,
        shards_gradients: false,
        shards_parameters: false,
        seed: 0,
        device,
    }
}

/// Runs the layer forward and backward on the recorded tensors, and names its results as in the
/// record. They lie on the host.
///
/// # Errors
/// The layer or the device fails.
pub(crate) fn run(stage: StageConfig, case: &Json, recorded: &Named) -> Result<Named, EngineError> {
    run_with(stage, case, recorded, Engine::backward)
}

/// As [`run`], with another way to call the backward pass.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_with(
    stage: StageConfig,
    case: &Json,
    recorded: &Named,
    backward: impl FnOnce(
        &mut Engine,
        MicrobatchKey,
        Vec<Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, EngineError>,
) -> Result<Named, EngineError> {
    let mut engine = Engine::build(stage, &CustomLayers::default())?;
    let state = of(recorded, "state").map(|(name, tensor)| (format!("it.{name}"), tensor));
    let state = state.map(|(name, tensor)| Ok((name, copy(tensor)?)));
    engine.load_state(state.collect::<Result<_, TensorError>>()?)?;
    let evaluates = case["eval"] == Json::Bool(true);
    let pass = Pass {
        key: KEY,
        step: 1,
        mode: if evaluates { Mode::Eval } else { Mode::Train },
        defer_statistics: false,
        check_finite: false,
    };
    let inputs = of(recorded, "input").enumerate().map(|(port, (_, tensor))| {
        // Recorded as int64.
        match case["inputs"][port]["dtype"] == "bool" {
            true => Ok(tensor.f_to_kind(Kind::Bool)?),
            false => copy(tensor),
        }
    });
    let inputs = inputs.collect::<Result<Vec<_>, TensorError>>()?;
    let outputs = engine.forward(&pass, inputs)?;
    let outputs = outputs.into_iter().enumerate();
    let mut found: Vec<(String, Tensor)> =
        outputs.map(|(port, output)| (format!("output.{port}"), output)).collect();
    if !evaluates {
        let grads = of(recorded, "grad").map(|(_, grad)| Ok(vec![copy(grad)?]));
        let grads = grads.collect::<Result<Vec<_>, TensorError>>()?;
        for (port, grads) in backward(&mut engine, KEY, grads)?.into_iter().enumerate() {
            found.extend(grads.into_iter().map(|grad| (format!("input_grad.{port}"), grad)));
        }
    }
    found.extend(parameters_of(&engine)?);
    let on_host =
        found.into_iter().map(|(name, tensor)| Ok((name, tensor.f_to_device(Device::Cpu)?)));
    Ok(on_host.collect::<Result<Named, TensorError>>()?)
}

/// The gradients of parameters, and the buffers, as the record names them.
fn parameters_of(engine: &Engine) -> Result<Vec<(String, Tensor)>, EngineError> {
    let named = |sort: &str, name: &str| name.replacen("it.", &format!("{sort}."), 1);
    let gradients = engine.gradients()?.into_iter();
    let gradients = gradients.filter_map(|(name, grad)| Some((named("param_grad", name), grad?)));
    let trained: BTreeSet<&str> = engine.trained_params().map(|(name, _)| name).collect();
    let state = engine.state()?.into_iter();
    let buffers = state.filter(|(name, _)| !trained.contains(name.as_str()));
    let buffers = buffers.map(|(name, tensor)| (named("buffer", &name), tensor));
    Ok(gradients.chain(buffers).collect())
}

/// A copy in memory of its own, because layers may write to what they are given.
fn copy(tensor: &Tensor) -> Result<Tensor, TensorError> {
    let mut copy = tensor.f_empty_like()?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

/// The largest errors of outputs and buffers, of input gradients and of parameter gradients. `None`
/// if the layer has none of them, infinite if a tensor is missing.
///
/// # Errors
/// libtorch fails.
pub(crate) fn errors(found: &Named, recorded: &Named) -> Result<[Option<f64>; 3], TensorError> {
    let outputs = worst(found, recorded, "output")?;
    let outputs = outputs.into_iter().chain(worst(found, recorded, "buffer")?).reduce(f64::max);
    let inputs = worst(found, recorded, "input_grad")?;
    Ok([outputs, inputs, worst(found, recorded, "param_grad")?])
}

/// The largest error of the tensors of one sort.
fn worst(found: &Named, recorded: &Named, sort: &str) -> Result<Option<f64>, TensorError> {
    let names = |named| of(named, sort).map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    if names(found) != names(recorded) {
        return Ok(Some(f64::INFINITY));
    }
    let pairs = of(found, sort).zip(of(recorded, sort));
    let all = pairs.map(|((_, found), (_, expected))| error(found, expected));
    Ok(all.collect::<Result<Vec<_>, _>>()?.into_iter().reduce(f64::max))
}

fn error(found: &Tensor, expected: &Tensor) -> Result<f64, TensorError> {
    if found.size() != expected.size() {
        return Ok(f64::INFINITY);
    }
    let (found, expected) = (found.f_to_kind(Kind::Double)?, expected.f_to_kind(Kind::Double)?);
    let sizes = expected.f_abs()?;
    let floor = (sizes.f_max()?.f_double_value(&[])? * SHARE).max(FLOOR);
    let errors = found.f_sub(&expected)?.f_abs()?.f_div(&sizes.f_clamp_min(floor)?)?;
    let worst = errors.f_max()?.f_double_value(&[])?;
    Ok(if worst.is_nan() { f64::INFINITY } else { worst })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recurrent_layers_may_be_further_off_and_only_on_cuda() {
        let [lstm, linear] = ["LSTM", "Linear"].map(|kind| json!({"layer": {kind: {}}}));
        let cuda = Tolerances::of(Device::Cuda(0));
        assert!(cuda.for_case(&lstm) > cuda.for_case(&linear));
        for device in [Device::Cpu, Device::Mps] {
            let all = Tolerances::of(device);
            assert!(all.for_case(&lstm) <= all.for_case(&linear), "{device:?}");
        }
    }
}
