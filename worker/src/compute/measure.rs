//! Measures a layer on this machine. It runs alone.

use crate::engine::{
    sizes, CustomLayers, Engine, EngineError, HealthCheck, Mode, Pass, StageConfig, StageInput,
};
use layerspec::{DType, Layer};
use pipeline::ids::MicrobatchKey;
use pipeline::optimizer::OptimizerSpec;
use pipeline::task::{LayerProbe, LayerTimes, Ports, SavedPorts, Update};
use std::time::{Duration, Instant};
use tch::{Device, Tensor};
use tensor::{kind_of, memory, TensorError};

/// The least number of repetitions, enough for a median.
const MIN_REPETITIONS: usize = 3;
/// The approximate time of all repetitions of a layer, unless the least number takes longer.
const TARGET_TIME: Duration = Duration::from_millis(40);
/// The most repetitions, for layers that take hardly any time.
const MAX_REPETITIONS: usize = 100;

/// Runs a layer with its own parameters, and returns the median times of its parts.
pub(crate) fn measure(
    probe: &LayerProbe,
    device: Device,
    custom_layers: &CustomLayers,
) -> Result<LayerTimes, EngineError> {
    let mut bench = LayerBench::new(probe, device, custom_layers)?;
    // A first run, because memory is not yet allocated and code not yet loaded.
    bench.time_full_backward()?;
    bench.time_split_backward()?;
    let begin = Instant::now();
    let mut rounds: Vec<LayerTimes> = Vec::new();
    while rounds.len() < MIN_REPETITIONS
        || (begin.elapsed() < TARGET_TIME && rounds.len() < MAX_REPETITIONS)
    {
        let (whole, halves) = (bench.time_full_backward()?, bench.time_split_backward()?);
        rounds.push(LayerTimes { forward: whole.forward, backward: whole.backward, ..halves });
    }
    let median = |of: fn(&LayerTimes) -> u64| {
        let mut all: Vec<u64> = rounds.iter().map(of).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    Ok(LayerTimes {
        forward: median(|times| times.forward),
        backward: median(|times| times.backward),
        backward_input: median(|times| times.backward_input),
        backward_weight: median(|times| times.backward_weight),
        optim_step: median(|times| times.optim_step),
        // The same in every round.
        saved_bytes: median(|times| times.saved_bytes),
        saved_bytes_between: median(|times| times.saved_bytes_between),
        saved_ports: rounds.first().map(|times| times.saved_ports).unwrap_or_default(),
    })
}

/// One layer as a stage.
struct LayerBench {
    engine: Engine,
    inputs: Vec<Tensor>,
    device: Device,
}

const KEY: MicrobatchKey = MicrobatchKey { batch: 0, index: 0 };

impl LayerBench {
    fn new(
        probe: &LayerProbe,
        device: Device,
        custom_layers: &CustomLayers,
    ) -> Result<Self, EngineError> {
        // Tied parameters are made for this layer alone.
        let layer = Layer { share: None, ..probe.layer.clone() };
        let inputs = layer.inputs.iter().zip(&probe.inputs).map(|(value, meta)| StageInput {
            value: *value,
            needs_grad: probe.input_grads && meta.dtype.is_floating(),
            sum_here: true,
        });
        let model = StageConfig {
            inputs: inputs.collect(),
            outputs: layer.outputs.clone(),
            tied_copies: Vec::new(),
            tied_owners: Vec::new(),
            buckets: Vec::new(),
            shard_id: None,
            shards_gradients: false,
            shards_parameters: false,
            layers: vec![layer],
            seed: 0,
            device,
        };
        let mut engine = Engine::build(model, custom_layers)?;
        engine.set_optimizer(OptimizerSpec::adam(0.0));
        let inputs = probe.inputs.iter().map(|meta| filled(meta.dtype, &meta.shape, device));
        let inputs = inputs.collect::<Result<_, _>>()?;
        Ok(LayerBench { engine, inputs, device })
    }

    /// Forward and backward.
    fn time_full_backward(&mut self) -> Result<LayerTimes, EngineError> {
        let (forward, outputs) = self.forward()?;
        let grads = grads_like(&outputs)?;
        let (backward, _) = timed(self.device, || self.engine.backward(KEY, grads))?;
        Ok(LayerTimes { forward, backward, ..LayerTimes::default() })
    }

    /// Forward, backward in halves, and a step.
    fn time_split_backward(&mut self) -> Result<LayerTimes, EngineError> {
        let (forward, outputs) = self.forward()?;
        let grads = grads_like(&outputs)?;
        let first = self.inputs.first();
        let is_view = |output: &Tensor| first.is_some_and(|x| memory::share_memory(x, output));
        let views = outputs.iter().enumerate().filter(|(_, output)| is_view(output));
        let mut saved_ports = SavedPorts {
            inputs: self.engine.saved_of(&self.inputs),
            outputs: self.engine.saved_of(&outputs),
            views: views.map(|(port, _)| port).collect(),
            ..SavedPorts::default()
        };
        let first_outputs = outputs.iter().take(Ports::MOST);
        let others: Vec<_> = self.inputs.iter().take(Ports::MOST).chain(first_outputs).collect();
        let held = self.engine.saved_bytes_besides(&others).forward;
        let (backward_input, done) = timed(self.device, || self.engine.backward_input(KEY, grads))?;
        drop((done, outputs));
        saved_ports.inputs_between = self.engine.saved_between_of(&self.inputs);
        let inputs: Vec<_> = self.inputs.iter().take(Ports::MOST).collect();
        let held_between = self.engine.saved_bytes_besides(&inputs).between;
        let (backward_weight, _) = timed(self.device, || self.engine.backward_weight(KEY))?;
        let update = Update { lr: 0.0, scale: 1.0, clip: 1.0, skip: false };
        let (optim_step, _) =
            timed(self.device, || self.engine.optim_step(&update, Vec::new(), HealthCheck::Off))?;
        Ok(LayerTimes {
            forward,
            backward_input,
            backward_weight,
            optim_step,
            saved_bytes: held,
            saved_bytes_between: held_between,
            saved_ports,
            ..LayerTimes::default()
        })
    }

    fn forward(&mut self) -> Result<(u64, Vec<Tensor>), EngineError> {
        let pass = Pass {
            key: KEY,
            step: 0,
            mode: Mode::Train,
            defer_statistics: false,
            check_finite: false,
        };
        let inputs = self.inputs.iter().map(Tensor::shallow_clone).collect();
        timed(self.device, || self.engine.forward(&pass, inputs))
    }
}

/// The nanoseconds of some work, with the part that the device does after the call.
fn timed<T>(
    device: Device,
    work: impl FnOnce() -> Result<T, EngineError>,
) -> Result<(u64, T), EngineError> {
    tensor::device::synchronize(device)?;
    let begin = Instant::now();
    let result = work()?;
    tensor::device::synchronize(device)?;
    Ok((u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX), result))
}

/// Inputs that any layer accepts: small numbers, and row 0 for indices.
fn filled(dtype: DType, shape: &[u64], device: Device) -> Result<Tensor, TensorError> {
    let kind = kind_of(dtype);
    let shape = sizes(shape)?;
    if !dtype.is_floating() {
        return Ok(Tensor::f_zeros(shape, (kind, device))?);
    }
    let count = shape.iter().try_fold(1i64, |product, size| product.checked_mul(*size));
    let count = count.ok_or_else(|| {
        TensorError::invalid("measuring", format!("the shape {shape:?} is too large"))
    })?;
    Ok(Tensor::f_arange(count, (kind, device))?
        .f_remainder(17)?
        .f_div_scalar(17.0)?
        .f_sub_scalar(0.5)?
        .f_reshape(shape)?)
}

fn grads_like(outputs: &[Tensor]) -> Result<Vec<Vec<Tensor>>, TensorError> {
    outputs.iter().map(|output| Ok(vec![output.f_ones_like()?])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_device::device;
    use layerspec::LayerGraph;
    use pipeline::TensorMeta;
    use tch::Kind;

    /// A product of matrices of this size takes far longer than a call that gives it to a device.
    const SIZE: i64 = 1536;

    /// The shortest time of a product of this size, which the host waits for.
    fn product(device: Device) -> Duration {
        let one = Tensor::ones([SIZE, SIZE], (Kind::Float, device));
        let time = || {
            tensor::device::synchronize(device).unwrap();
            let begin = Instant::now();
            let _product = one.matmul(&one);
            tensor::device::synchronize(device).unwrap();
            begin.elapsed()
        };
        (0..5).map(|_| time()).min().unwrap()
    }

    /// On a device a call returns long before its work is done.
    #[test]
    fn the_times_of_a_layer_are_those_of_its_work() {
        tensor::threads::set_count(1);
        let device = device();
        let yaml = format!(
            "model: line\ninputs: {{x: [batch, {SIZE}]}}\nlayers:\n  - Linear: {{in_features: \
             {SIZE}, out_features: {SIZE}, bias: false}}\n"
        );
        let graph = LayerGraph::from_yaml(&yaml, "test.yaml").unwrap();
        let shape = vec![SIZE.unsigned_abs(); 2];
        let probe = LayerProbe {
            layer: graph.layers()[0].clone(),
            inputs: vec![TensorMeta { dtype: DType::Float32, shape }],
            input_grads: true,
        };
        let least = product(device) / 4;
        let times = measure(&probe, device, &CustomLayers::default()).unwrap();
        // The whole backward pass has two products.
        for (part, nanoseconds, products) in [
            ("forward", times.forward, 1),
            ("backward", times.backward, 2),
            ("backward, inputs", times.backward_input, 1),
            ("backward, weights", times.backward_weight, 1),
        ] {
            let time = Duration::from_nanos(nanoseconds);
            assert!(time >= products * least, "{part}: {time:?} instead of {least:?} or more");
        }
    }
}
