//! A pipeline of engines in one thread: the same model, cut somewhere.

use super::*;
use layerspec::ValueId;

/// The stages of a cut model.
pub(crate) struct Chain {
    graph: LayerGraph,
    pub(crate) engines: Vec<Engine>,
}

/// The data of a step: inputs and targets of one microbatch.
pub(crate) struct Sample {
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) target: Tensor,
}

impl Chain {
    /// Cuts the model before each layer of `cuts`. `sum` lets a value's last stage sum its uses.
    pub(crate) fn new(graph: &LayerGraph, cuts: &[usize], sum: bool) -> Result<Self, EngineError> {
        let ends = cuts.iter().copied().chain([graph.layers().len()]);
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        let engines = starts.zip(ends).map(|(start, end)| build(stage(graph, start, end, sum)));
        Ok(Chain { graph: graph.clone(), engines: engines.collect::<Result<_, _>>()? })
    }

    pub(crate) fn set_optimizer(&mut self, spec: OptimizerSpec) {
        for engine in &mut self.engines {
            engine.set_optimizer(spec);
        }
    }

    /// One step over uneven microbatches: all forward, then all backward. Returns the step's loss.
    pub(crate) fn step(&mut self, step: u64, samples: &[Sample], loss: &LossSpec) -> f32 {
        let sizes: Vec<f64> = samples.iter().map(|sample| sample.target.size()[0] as f64).collect();
        let mut total = 0.0;
        for (index, sample) in samples.iter().enumerate() {
            let pass = Pass {
                key: key(index as u32),
                step,
                mode: Mode::Train,
                defer_statistics: false,
                check_finite: false,
            };
            let weight = sizes[index] / sizes.iter().sum::<f64>();
            total += self.forward(&pass, sample, loss, weight);
        }
        for index in 0..samples.len() {
            self.backward(key(index as u32));
        }
        for engine in &mut self.engines {
            assert_eq!(engine.pending_microbatches(), 0);
            optim_step(engine, 1e-2).unwrap();
        }
        total
    }

    fn forward(&mut self, pass: &Pass, sample: &Sample, loss: &LossSpec, weight: f64) -> f32 {
        let mut values: HashMap<ValueId, Tensor> = HashMap::new();
        for (value, tensor) in self.graph.inputs().iter().zip(&sample.inputs) {
            values.insert(*value, tensor.shallow_clone());
        }
        let predicted = self.graph.outputs()[0];
        let mut result = None;
        for engine in &mut self.engines {
            let inputs = engine
                .stage()
                .inputs
                .iter()
                .map(|input| over_the_wire(&values[&input.value]))
                .collect();
            let outputs = engine.forward(pass, inputs).unwrap();
            for (output, prediction) in outputs.iter().enumerate() {
                if engine.stage().outputs[output] == predicted {
                    let task =
                        LossInputs { output, prediction, target: &sample.target, loss, weight };
                    let loss = engine.loss(pass.key, &task, pass.mode).unwrap();
                    result = Some(loss.numbers().unwrap()[0] as f32);
                }
            }
            values.extend(engine.stage().outputs.clone().into_iter().zip(outputs));
        }
        result.unwrap()
    }

    fn backward(&mut self, key: MicrobatchKey) {
        let mut grads: HashMap<ValueId, Vec<Tensor>> = HashMap::new();
        for engine in self.engines.iter_mut().rev() {
            let outputs = engine.stage().outputs.iter();
            let output_grads =
                outputs.map(|value| grads.remove(value).unwrap_or_default()).collect();
            let input_grads = engine.backward(key, output_grads).unwrap();
            for (input, uses) in engine.stage().inputs.iter().zip(input_grads) {
                grads.entry(input.value).or_default().extend(uses.iter().map(over_the_wire));
            }
        }
        assert!(grads.values().all(Vec::is_empty), "gradients that nobody asked for");
    }

    pub(crate) fn state(&self) -> Vec<(String, Tensor)> {
        self.engines.iter().flat_map(|engine| engine.state().unwrap()).collect()
    }

    pub(crate) fn optimizer_state(&self) -> Vec<(String, Tensor)> {
        self.engines.iter().flat_map(whole_state).collect()
    }
}

/// A tensor as it arrives on the other side: fresh memory, plain strides.
fn over_the_wire(tensor: &Tensor) -> Tensor {
    let bytes = tensor::payload::to_bytes(tensor).unwrap();
    let copy = bytes::Bytes::from(bytes.to_vec());
    tensor::payload::from_bytes(tensor::dtype_of(tensor).unwrap(), &tensor.size(), copy).unwrap()
}

fn stage(graph: &LayerGraph, start: usize, end: usize, sum: bool) -> StageConfig {
    let layers = graph.layers()[start..end].to_vec();
    let inside = |layer: usize| (start..end).contains(&layer);
    let made: Vec<ValueId> = layers.iter().flat_map(|layer| layer.outputs.clone()).collect();
    let mut inputs: Vec<StageInput> = Vec::new();
    for &value in layers.iter().flat_map(|layer| &layer.inputs) {
        if made.contains(&value) || inputs.iter().any(|input| input.value == value) {
            continue;
        }
        let last_users = graph.users(value).iter().all(|user| user.layer.index() < end);
        inputs.push(StageInput {
            value,
            needs_grad: graph.requires_grad(value),
            sum_here: sum && last_users && !graph.outputs().contains(&value),
        });
    }
    let leaves = |value: &ValueId| {
        graph.outputs().contains(value)
            || graph.users(*value).iter().any(|user| !inside(user.layer.index()))
    };
    let outputs = made.into_iter().filter(leaves).collect();
    StageConfig {
        layers,
        inputs,
        outputs,
        tied_copies: Vec::new(),
        tied_owners: Vec::new(),
        buckets: Vec::new(),
        shard_id: None,
        shards_gradients: false,
        shards_parameters: false,
        seed: 11,
        device: Device::Cpu,
    }
}
