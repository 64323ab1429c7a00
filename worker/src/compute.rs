//! What the compute thread does: tasks in, libtorch at work, outcomes out.

use crate::engine::{Engine, EngineError, LossTask, Mode, Pass, StageInput, StageModel};
use layerspec::DType;
use link::{Compute, Payload};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::{self, Failure};
use pipeline::plan::StageSpec;
use pipeline::task::{self, Outcome, Task};
use pipeline::TensorMeta;
use std::collections::BTreeMap;
use tch::{Device, Tensor};
use tensor::{payload, TensorError};

/// The stages of one worker, on one device.
pub struct StageCompute {
    device: Device,
    stages: BTreeMap<StageId, Engine>,
}

impl StageCompute {
    /// No stages yet.
    pub fn new(device: Device) -> Self {
        StageCompute { device, stages: BTreeMap::new() }
    }

    fn stage(&mut self, stage: StageId) -> Result<&mut Engine, Failure> {
        self.stages.get_mut(&stage).ok_or_else(|| Failure::new(format!("{stage} is not on this worker")))
    }

    fn forward(
        &mut self,
        stage: StageId,
        pass: &Pass,
        inputs: &[Payload],
        export: &[usize],
        loss: Option<task::LossTask<Payload>>,
    ) -> Result<Outcome<Payload>, Failure> {
        let inputs = inputs.iter().map(tensor).collect::<Result<_, _>>().map_err(plain)?;
        let engine = self.stage(stage)?;
        let outputs = engine.forward(pass, inputs).map_err(explain)?;
        let loss = match loss {
            Some(task) => {
                let prediction = outputs.get(task.output).ok_or_else(|| Failure::new("the loss names no output"))?;
                let target = tensor(&task.target).map_err(plain)?;
                let task =
                    LossTask { output: task.output, prediction, target: &target, loss: task.spec, weight: task.weight };
                Some(engine.loss(pass.key, &task, pass.mode).map_err(explain)?)
            }
            None => None,
        };
        let exported = export.iter().filter_map(|index| outputs.get(*index));
        let outputs = exported.map(to_payload).collect::<Result<_, _>>().map_err(plain)?;
        Ok(Outcome::Forward { outputs, loss })
    }

    fn backward(
        &mut self,
        stage: StageId,
        key: MicrobatchKey,
        grads: &[Vec<Payload>],
    ) -> Result<Outcome<Payload>, Failure> {
        let tensors = |list: &Vec<Payload>| list.iter().map(tensor).collect::<Result<Vec<_>, _>>();
        let grads = grads.iter().map(tensors).collect::<Result<_, _>>().map_err(plain)?;
        let grads = self.stage(stage)?.backward(key, grads).map_err(explain)?;
        let payloads = |list: &Vec<Tensor>| list.iter().map(to_payload).collect::<Result<Vec<_>, _>>();
        Ok(Outcome::Backward { grads: grads.iter().map(payloads).collect::<Result<_, _>>().map_err(plain)? })
    }

    fn step(&mut self, stage: StageId) -> Result<(), Failure> {
        let engine = self.stage(stage)?;
        engine.optim_step().map_err(explain)?;
        engine.zero_grad();
        Ok(())
    }

    fn load(&mut self, tensors: &[(String, Payload)]) -> Result<(), Failure> {
        let tensors = tensors.iter().map(|(name, payload)| Ok((name.clone(), tensor(payload)?)));
        let tensors: Vec<(String, Tensor)> = tensors.collect::<Result<_, TensorError>>().map_err(plain)?;
        let mut by_stage: BTreeMap<StageId, Vec<(String, Tensor)>> = BTreeMap::new();
        for (name, tensor) in tensors {
            let layer = name.rsplit_once('.').map_or(name.as_str(), |(layer, _)| layer);
            let has = |engine: &Engine| engine.stage().layers.iter().any(|l| l.name == layer);
            let stage = self.stages.iter().find(|(_, engine)| has(engine)).map(|(stage, _)| *stage);
            let stage = stage.ok_or_else(|| Failure::new(format!("no layer `{layer}` is on this worker")))?;
            by_stage.entry(stage).or_default().push((name, tensor));
        }
        for (stage, tensors) in by_stage {
            self.stage(stage)?.load_state(tensors).map_err(explain)?;
        }
        Ok(())
    }
}

impl Compute for StageCompute {
    fn run(&mut self, task: Task<Payload>) -> Result<Outcome<Payload>, Failure> {
        let place = Place::of(&task);
        self.carry_out(task).map_err(|failure| place.add_to(failure))
    }
}

impl StageCompute {
    fn carry_out(&mut self, task: Task<Payload>) -> Result<Outcome<Payload>, Failure> {
        match task {
            Task::Build { stages, seed } => {
                self.stages.clear(); // frees the old parameters before the new ones are made
                for spec in stages {
                    let stage = spec.stage;
                    let engine = Engine::build(model(spec, seed, self.device)).map_err(explain)?;
                    self.stages.insert(stage, engine);
                }
            }
            Task::SetOptimizer(spec) => self.stages.values_mut().for_each(|engine| engine.set_optimizer(spec)),
            Task::Forward { stage, key, step, mode, inputs, export, loss } => {
                let mode = match mode {
                    message::Mode::Train => Mode::Train,
                    message::Mode::Eval => Mode::Eval,
                };
                return self.forward(stage, &Pass { key, step, mode }, &inputs, &export, loss);
            }
            Task::Backward { stage, key, grads } => return self.backward(stage, key, &grads),
            Task::OptimStep { stage } => self.step(stage)?,
            Task::Discard { batch, gradients } => {
                for engine in self.stages.values_mut() {
                    engine.discard(batch);
                    if gradients {
                        engine.zero_grad();
                    }
                }
            }
            Task::Snapshot => {
                let mut tensors = Vec::new();
                for engine in self.stages.values() {
                    for (name, value) in engine.state().map_err(explain)? {
                        tensors.push((name, to_payload(&value).map_err(plain)?));
                    }
                }
                return Ok(Outcome::State { tensors });
            }
            Task::Load { tensors } => self.load(&tensors)?,
        }
        Ok(Outcome::Done)
    }
}

fn model(spec: StageSpec, seed: u64, device: Device) -> StageModel {
    let inputs = spec.inputs.iter().map(|input| StageInput {
        value: input.value,
        needs_grad: input.needs_grad,
        sum_here: input.sum_here,
    });
    StageModel {
        inputs: inputs.collect(),
        outputs: spec.outputs.iter().map(|output| output.value).collect(),
        layers: spec.layers,
        seed,
        device,
    }
}

fn tensor(payload: &Payload) -> Result<Tensor, TensorError> {
    let size = |d: &u64| i64::try_from(*d).map_err(|_| TensorError::invalid("receive", format!("a size of {d}")));
    let shape = payload.meta.shape.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    payload::from_bytes(payload.meta.dtype, &shape, payload.bytes.clone())
}

fn to_payload(tensor: &Tensor) -> Result<Payload, TensorError> {
    let dtype: DType = tensor::dtype_of(tensor)?;
    let shape = tensor.size().into_iter().map(|d| d.unsigned_abs()).collect();
    Ok(Payload { meta: TensorMeta { dtype, shape }, bytes: payload::to_bytes(tensor)? })
}

fn plain(e: TensorError) -> Failure {
    Failure::new(e.to_string())
}

fn explain(e: EngineError) -> Failure {
    match e {
        EngineError::Layer { layer, kind, source, .. } => {
            Failure { layer: Some(format!("{layer} ({kind})")), ..Failure::new(source.to_string()) }
        }
        other => Failure::new(other.to_string()),
    }
}

/// Where a task was at work, for its failure.
struct Place {
    stage: Option<StageId>,
    microbatch: Option<u32>,
    action: &'static str,
}

impl Place {
    fn of(task: &Task<Payload>) -> Self {
        let place = |stage, microbatch, action| Place { stage, microbatch, action };
        match task {
            Task::Forward { stage, key, .. } => place(Some(*stage), Some(key.index), "forward"),
            Task::Backward { stage, key, .. } => place(Some(*stage), Some(key.index), "backward"),
            Task::OptimStep { stage } => place(Some(*stage), None, "optimizer step"),
            Task::Build { .. } => place(None, None, "making its layers"),
            Task::Load { .. } => place(None, None, "loading weights"),
            Task::Snapshot => place(None, None, "handing out weights"),
            Task::SetOptimizer(_) => place(None, None, "setting the optimizer"),
            Task::Discard { .. } => place(None, None, "cancelling"),
        }
    }

    fn add_to(&self, failure: Failure) -> Failure {
        Failure { stage: self.stage, microbatch: self.microbatch, action: Some(self.action.into()), ..failure }
    }
}
