//! What the compute thread does: tasks in, libtorch at work, outcomes out.

use crate::engine::{measure, ByStage, Engine, EngineError, LossTask, Mode, OwnLayers, Pass, StageInput, StageModel};
use bytes::Bytes;
use layerspec::{DType, Precision};
use link::{Compute, Payload};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::{self, Failure};
use pipeline::plan::StageSpec;
use pipeline::task::{self, Outcome, Task};
use pipeline::TensorMeta;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use tch::{Device, Tensor};
use tensor::{payload, TensorError};

/// The stages of one worker, on one device.
pub struct StageCompute {
    device: Device,
    stages: BTreeMap<StageId, Engine>,
    own: OwnLayers,
    /// A task failed, and nothing has cleared up after it.
    failed: bool,
}

impl StageCompute {
    /// No stages yet, and the layers that every worker has.
    pub fn new(device: Device) -> Self {
        Self::with(device, OwnLayers::default())
    }

    /// No stages yet, and further layers.
    pub fn with(device: Device, own: OwnLayers) -> Self {
        StageCompute { device, stages: BTreeMap::new(), own, failed: false }
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
        let inputs = tensors(inputs)?;
        let engine = self.stage(stage)?;
        let outputs = engine.forward(pass, inputs).map_err(explain)?;
        let loss = match loss {
            Some(task) => {
                let prediction = outputs.get(task.output).ok_or_else(|| Failure::new("the loss names no output"))?;
                let target = tensor(&task.target).map_err(plain)?;
                let task = LossTask {
                    output: task.output,
                    prediction,
                    target: &target,
                    loss: &task.spec,
                    weight: task.weight,
                };
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
        input_only: bool,
    ) -> Result<Outcome<Payload>, Failure> {
        let grads = grads.iter().map(|list| tensors(list)).collect::<Result<_, _>>()?;
        let engine = self.stage(stage)?;
        let grads = if input_only { engine.backward_input(key, grads) } else { engine.backward(key, grads) };
        let grads = grads.map_err(explain)?;
        Ok(Outcome::Backward { grads: grads.iter().map(|list| payloads(list)).collect::<Result<_, _>>()? })
    }

    fn load(&mut self, tensors: &[(String, Payload)]) -> Result<(), Failure> {
        let mut by_stage: BTreeMap<StageId, Vec<(String, Tensor)>> = BTreeMap::new();
        for (name, payload) in tensors {
            let mut stages = self.stages_for(name);
            if stages.is_empty() {
                return Err(Failure::new(format!("no layer on this worker has a tensor `{name}`")));
            }
            for stage in stages.drain(..) {
                by_stage.entry(stage).or_default().push((name.clone(), tensor(payload).map_err(plain)?));
            }
        }
        for (stage, tensors) in by_stage {
            self.stage(stage)?.load_state(tensors).map_err(explain)?;
        }
        Ok(())
    }

    /// The stages that use a parameter or buffer of this name; where there are none, the stage with the layer that the
    /// name begins with, which will list it among its problems.
    fn stages_for(&self, name: &str) -> Vec<StageId> {
        let knows = self.stages.iter().filter(|(_, engine)| engine.knows(name));
        let knows: Vec<StageId> = knows.map(|(stage, _)| *stage).collect();
        let of_layer =
            |layer: &layerspec::Layer| name.strip_prefix(&layer.name).is_some_and(|rest| rest.starts_with('.'));
        let mut owners = self.stages.iter().filter(|(_, engine)| engine.stage().layers.iter().any(of_layer));
        if knows.is_empty() {
            owners.next().map(|(stage, _)| *stage).into_iter().collect()
        } else {
            knows
        }
    }
}

impl Compute for StageCompute {
    fn run(&mut self, task: Task<Payload>) -> Result<Outcome<Payload>, Failure> {
        let place = Place::of(&task);
        let result = match &task {
            Task::OptimStep { .. } if self.failed => Err(Failure::new("an earlier task of this step failed")),
            _ => {
                if let Task::Discard { .. } = task {
                    self.failed = false;
                }
                self.carry_out(task)
            }
        };
        self.failed |= result.is_err();
        result.map_err(|failure| place.add_to(failure))
    }
}

impl StageCompute {
    /// libtorch has kernels for float16 on CPUs, but no CPU is the faster for them, and some have none.
    fn check_precision(&self, spec: &StageSpec) -> Result<(), Failure> {
        let halves = spec.layers.iter().any(|layer| layer.precision == Precision::Fp16);
        if !halves || matches!(self.device, Device::Cuda(_)) {
            return Ok(());
        }
        Err(Failure::new(format!(
            "`precision: fp16` needs a CUDA GPU, and this worker computes on {}; take `precision: bf16`, or start the worker \
             with --device cuda:0",
            tensor::device::name(self.device)
        )))
    }

    fn carry_out(&mut self, task: Task<Payload>) -> Result<Outcome<Payload>, Failure> {
        match task {
            Task::Build { stages, seed } => {
                self.stages.clear(); // frees the old parameters before the new ones are made
                for spec in stages {
                    let stage = spec.stage;
                    self.check_precision(&spec)?;
                    let engine = Engine::build(model(spec, seed, self.device, self.own.clone())).map_err(explain)?;
                    self.stages.insert(stage, engine);
                }
            }
            Task::SetOptimizer(spec) => self.stages.values_mut().for_each(|engine| engine.set_optimizer(spec)),
            Task::Forward { stage, key, step, mode, cached, inputs, export, loss } => {
                let mode = match mode {
                    message::Mode::Train => Mode::Train,
                    message::Mode::Eval => Mode::Eval,
                };
                self.stage(stage)?.go_on(cached.as_ref()).map_err(explain)?;
                return self.forward(stage, &Pass { key, step, mode }, &inputs, &export, loss);
            }
            Task::Backward { stage, key, grads, input_only } => return self.backward(stage, key, &grads, input_only),
            Task::BackwardWeight { stage, key } => self.stage(stage)?.backward_weight(key).map_err(explain)?,
            Task::TiedGrads { stage } => return tied(&self.stage(stage)?.tied_grads().map_err(explain)?),
            Task::GradNorm { stage, tied } => {
                let squares = self.stage(stage)?.grad_norm(by_stage(&tied)?).map_err(explain)?;
                return Ok(Outcome::Norms { squares });
            }
            Task::OptimStep { stage, update, tied: from_others } => {
                let from_others = by_stage(&from_others)?;
                return tied(&self.stage(stage)?.optim_step(&update, from_others).map_err(explain)?);
            }
            Task::UpdateTied { stage, tied } => {
                self.stage(stage)?.update_tied(by_stage(&tied)?).map_err(explain)?;
            }
            Task::Measure { probes } => {
                let times = probes.iter().map(|probe| measure(probe, self.device, &self.own)).collect::<Result<_, _>>();
                return Ok(Outcome::Measured { times: times.map_err(explain)? });
            }
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
            Task::Files { files } => self.own.keep(checked(files)?),
        }
        Ok(Outcome::Done)
    }
}

/// Files by their SHA-256, under which the boss names them.
fn checked(files: Vec<(String, Payload)>) -> Result<BTreeMap<String, Bytes>, Failure> {
    let file = |(hash, payload): (String, Payload)| {
        let found = Sha256::digest(&payload.bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        match found == hash {
            true => Ok((hash, payload.bytes)),
            false => Err(Failure::new(format!("a file came with the SHA-256 {found} instead of {hash}"))),
        }
    };
    files.into_iter().map(file).collect()
}

fn model(spec: StageSpec, seed: u64, device: Device, own: OwnLayers) -> StageModel {
    let inputs = spec.inputs.iter().map(|input| StageInput {
        value: input.value,
        needs_grad: input.needs_grad,
        sum_here: input.sum_here,
    });
    StageModel {
        inputs: inputs.collect(),
        outputs: spec.outputs.iter().map(|output| output.value).collect(),
        borrowed: spec.borrowed,
        lent: spec.lent,
        layers: spec.layers,
        seed,
        device,
        own,
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

fn tensors(payloads: &[Payload]) -> Result<Vec<Tensor>, Failure> {
    payloads.iter().map(tensor).collect::<Result<_, _>>().map_err(plain)
}

fn payloads(tensors: &[Tensor]) -> Result<Vec<Payload>, Failure> {
    tensors.iter().map(to_payload).collect::<Result<_, _>>().map_err(plain)
}

fn by_stage(payloads: &[(StageId, Vec<Payload>)]) -> Result<ByStage, Failure> {
    payloads.iter().map(|(stage, list)| Ok((*stage, tensors(list)?))).collect()
}

fn tied(tensors: &ByStage) -> Result<Outcome<Payload>, Failure> {
    let each = tensors.iter().map(|(stage, list)| Ok((*stage, payloads(list)?)));
    Ok(Outcome::Tied { tensors: each.collect::<Result<_, Failure>>()? })
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
            Task::Backward { stage, key, input_only: false, .. } => place(Some(*stage), Some(key.index), "backward"),
            Task::Backward { stage, key, .. } => place(Some(*stage), Some(key.index), "backward for inputs"),
            Task::BackwardWeight { stage, key } => place(Some(*stage), Some(key.index), "backward for weights"),
            Task::TiedGrads { stage } => place(Some(*stage), None, "handing over of tied gradients"),
            Task::GradNorm { stage, .. } => place(Some(*stage), None, "gradient norm"),
            Task::UpdateTied { stage, .. } => place(Some(*stage), None, "update of tied parameters"),
            Task::Measure { .. } => place(None, None, "measuring layers"),
            Task::OptimStep { stage, .. } => place(Some(*stage), None, "optimizer step"),
            Task::Build { .. } => place(None, None, "making its layers"),
            Task::Load { .. } => place(None, None, "loading weights"),
            Task::Files { .. } => place(None, None, "taking files"),
            Task::Snapshot => place(None, None, "handing out weights"),
            Task::SetOptimizer(_) => place(None, None, "setting the optimizer"),
            Task::Discard { .. } => place(None, None, "cancelling"),
        }
    }

    fn add_to(&self, failure: Failure) -> Failure {
        Failure { stage: self.stage, microbatch: self.microbatch, action: Some(self.action.into()), ..failure }
    }
}
