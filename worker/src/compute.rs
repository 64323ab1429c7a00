//! The work of the compute thread: tasks in, libtorch at work, outcomes out.

use crate::collective::Communicators;
use crate::engine::{
    measure, CustomLayers, Engine, LossInputs, Mode, Pass, StageConfig, StageInput, TensorsByStage, TreeTarget,
};
use crate::payloads::{
    decompressed_sums, engine_failure, tensor_failure, tied_outcome, to_payload, to_payload_output, to_payloads,
    to_tensor, to_tensors, to_tensors_by_stage,
};
use crate::place::TaskLocation;
use bytes::Bytes;
use layerspec::Precision;
use link::Payload;
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::{self, Failure};
use pipeline::plan::StageSpec;
use pipeline::replicas::{BucketBytes, ShardId, Sharding};
use pipeline::task::{self, Branch, HandedOut, Outcome, Task, Update};
use pipeline::watch::Finite;
use pipeline::StateName;
use runtime::{Compute, Interrupt};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use tch::{Device, Tensor};
use tensor::nccl::Nccl;
use tensor::parts::concat_shards;

/// Takes what is handed out.
type EmitPayload<'a> = &'a mut dyn FnMut(HandedOut<Payload>);

/// The stages of one worker, on one device.
pub struct StageCompute {
    device: Device,
    stages: BTreeMap<StageId, Engine>,
    custom_layers: CustomLayers,
    communicators: Communicators,
    /// A task failed, and nothing has cleared up after it.
    failed: bool,
}

impl StageCompute {
    /// No stages yet, and the layers that every worker has.
    pub fn new(device: Device) -> Self {
        Self::with_custom_layers(device, CustomLayers::default())
    }

    /// No stages yet, and further layers. It is made on the thread that computes.
    pub fn with_custom_layers(device: Device, custom_layers: CustomLayers) -> Self {
        tensor::threads::apply_to_this_thread();
        StageCompute {
            device,
            stages: BTreeMap::new(),
            custom_layers,
            communicators: Communicators::default(),
            failed: false,
        }
    }

    /// The same, that sums gradients over replicas with this library. What waits for others then is called off by `interrupt`.
    #[must_use]
    pub fn with_nccl(self, nccl: Option<Arc<Nccl>>, interrupt: Interrupt) -> Self {
        StageCompute { communicators: Communicators::new(nccl, interrupt), ..self }
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
        (loss, finite): (Option<task::LossTask<Payload>>, Finite),
    ) -> Result<Outcome<Payload>, Failure> {
        let inputs = to_tensors(inputs)?;
        let engine = self.stage(stage)?;
        let outputs = engine.forward(pass, inputs).map_err(engine_failure)?;
        let loss = match loss {
            Some(task) => {
                let prediction = outputs.get(task.output).ok_or_else(|| Failure::new("the loss names no output"))?;
                let target = to_tensor(&task.target).map_err(tensor_failure)?;
                let task = LossInputs {
                    output: task.output,
                    prediction,
                    target: &target,
                    loss: &task.spec,
                    weight: task.weight,
                };
                let loss = engine.loss(pass.key, &task, pass.mode).map_err(engine_failure)?;
                check_loss(loss, finite, &task)?;
                Some(loss)
            }
            None => None,
        };
        let exported = export.iter().filter_map(|index| outputs.get(*index));
        let outputs = exported.map(to_payload).collect::<Result<_, _>>().map_err(tensor_failure)?;
        Ok(Outcome::Forward { outputs, loss })
    }

    fn backward(
        &mut self,
        stage: StageId,
        key: MicrobatchKey,
        grads: &[Vec<Payload>],
        input_only: bool,
        summing: (Option<Branch>, EmitPayload<'_>),
    ) -> Result<Outcome<Payload>, Failure> {
        let grads = grads.iter().map(|list| to_tensors(list)).collect::<Result<_, _>>()?;
        let engine = self.stage(stage)?;
        let grads = match summing {
            _ if input_only => engine.backward_input(key, grads),
            (None, _) => engine.backward(key, grads),
            (Some(branch), out) => {
                let emit = &mut |sums| to_payload_output(sums).map(&mut *out);
                engine.backward_into_tree(key, grads, TreeTarget { stage, branch, emit })
            }
        };
        let grads = grads.map_err(engine_failure)?;
        Ok(Outcome::Backward { grads: grads.iter().map(|list| to_payloads(list)).collect::<Result<_, _>>()? })
    }

    fn backward_weight(
        &mut self,
        stage: StageId,
        key: MicrobatchKey,
        summing: (Option<Branch>, EmitPayload<'_>),
    ) -> Result<(), Failure> {
        let engine = self.stage(stage)?;
        let done = match summing {
            (None, _) => engine.backward_weight(key),
            (Some(branch), out) => {
                let emit = &mut |sums| to_payload_output(sums).map(&mut *out);
                engine.backward_weight_into_tree(key, TreeTarget { stage, branch, emit })
            }
        };
        done.map_err(engine_failure)
    }

    fn load(&mut self, tensors: &[(String, Payload)]) -> Result<(), Failure> {
        let mut by_stage: BTreeMap<StageId, Vec<(String, Tensor)>> = BTreeMap::new();
        for (name, payload) in tensors {
            let mut stages = self.stages_with_tensor(name);
            if stages.is_empty() {
                return Err(Failure::new(format!("no layer on this worker has a tensor `{name}`")));
            }
            for stage in stages.drain(..) {
                by_stage.entry(stage).or_default().push((name.clone(), to_tensor(payload).map_err(tensor_failure)?));
            }
        }
        for (stage, tensors) in by_stage {
            self.stage(stage)?.load_state(tensors).map_err(engine_failure)?;
        }
        Ok(())
    }

    /// Parameters and buffers, and what the optimizer keeps for them.
    fn load_with_optimizer(&mut self, tensors: Vec<(String, Payload)>) -> Result<(), Failure> {
        let (optimizer_tensors, state): (Vec<_>, Vec<_>) =
            tensors.into_iter().partition(|(name, _)| StateName::parse(name).optimizer);
        self.load(&state)?;
        let mut by_stage: BTreeMap<StageId, Vec<(String, Tensor)>> = BTreeMap::new();
        let mut parts: BTreeMap<(StageId, &str), BTreeMap<u64, Tensor>> = BTreeMap::new();
        for (name, payload) in &optimizer_tensors {
            let StateName { name, start, .. } = StateName::parse(name);
            let of_param = name.rsplit_once('.').map_or("", |(param, _)| param);
            let owner = self.stages.iter().find(|(_, engine)| engine.trained_params().any(|(own, _)| own == of_param));
            let Some((stage, _)) = owner else {
                return Err(Failure::new(format!("optimizer state of `{of_param}`, which is not trained here")));
            };
            let tensor = to_tensor(payload).map_err(tensor_failure)?;
            match start {
                None => by_stage.entry(*stage).or_default().push((name.to_string(), tensor)),
                // Of what replicas shared out each kept its part.
                Some(start) => drop(parts.entry((*stage, name)).or_default().insert(start, tensor)),
            }
        }
        for ((stage, name), parts) in parts {
            let of_param = name.rsplit_once('.').map_or("", |(param, _)| param);
            let trained = self.stages.get(&stage).into_iter().flat_map(Engine::trained_params);
            let sizes = trained.into_iter().find(|(own, _)| *own == of_param).map(|(_, param)| param.size());
            let whole = concat_shards(parts, &sizes.unwrap_or_default());
            let whole = whole.map_err(|problem| Failure::new(format!("optimizer state `{name}`: {problem}")))?;
            by_stage.entry(stage).or_default().push((name.to_string(), whole));
        }
        for (stage, engine) in &mut self.stages {
            engine.load_optimizer_state(by_stage.remove(stage).unwrap_or_default()).map_err(engine_failure)?;
        }
        Ok(())
    }

    /// The stages that use a parameter or buffer of this name; where there are none, the stage with the layer that the
    /// name begins with, which will list it among its problems.
    fn stages_with_tensor(&self, name: &str) -> Vec<StageId> {
        let having = self.stages.iter().filter(|(_, engine)| engine.has_tensor(name));
        let having: Vec<StageId> = having.map(|(stage, _)| *stage).collect();
        let of_layer =
            |layer: &layerspec::Layer| name.strip_prefix(&layer.name).is_some_and(|rest| rest.starts_with('.'));
        let mut owners = self.stages.iter().filter(|(_, engine)| engine.stage().layers.iter().any(of_layer));
        if having.is_empty() {
            owners.next().map(|(stage, _)| *stage).into_iter().collect()
        } else {
            having
        }
    }
}

impl Compute for StageCompute {
    fn run(
        &mut self,
        task: Task<Payload>,
        emit: &mut dyn FnMut(HandedOut<Payload>),
    ) -> Result<Outcome<Payload>, Failure> {
        let location = TaskLocation::of(&task);
        let result = match &task {
            Task::OptimStep { .. } | Task::AllGather { .. } | Task::AllReduce { .. } if self.failed => {
                Err(Failure::new("an earlier task of this step failed"))
            }
            _ => {
                if let Task::Discard { gradients, .. } = task {
                    self.failed = false;
                    self.communicators.clear_interrupt();
                    // Other replicas may have left a sum that this one took.
                    if gradients {
                        self.communicators.clear();
                    }
                }
                self.execute(task, emit)
            }
        };
        self.failed |= result.is_err();
        result.map_err(|failure| location.annotate(failure))
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

    /// Frees the old stages before new ones are built.
    fn release(&mut self, sharding: Option<Sharding>) {
        self.stages.clear();
        self.communicators.clear();
        // A run that shards state is short of memory. In other runs time counts more.
        match sharding {
            Some(_) => tensor::memory::return_freed_memory(),
            None => tensor::memory::keep_freed_memory(),
        }
        link::keep_received_memory(sharding.is_none());
    }

    fn build(
        &mut self,
        spec: StageSpec,
        buckets: BucketBytes,
        sharding: Option<Sharding>,
        shard_id: Option<ShardId>,
        seed: u64,
    ) -> Result<(), Failure> {
        let stage = spec.stage;
        self.check_precision(&spec)?;
        let model = StageConfig {
            buckets: pipeline::replicas::buckets(&spec, buckets, sharding),
            shard_id,
            shards_gradients: sharding.is_some_and(Sharding::shards_gradients),
            shards_parameters: sharding.is_some_and(Sharding::shards_parameters),
            ..stage_config(spec, seed, (self.device, self.custom_layers.clone()))
        };
        self.stages.insert(stage, Engine::build(model).map_err(engine_failure)?);
        Ok(())
    }

    fn discard(&mut self, batch: u64, gradients: bool) -> Result<(), Failure> {
        for engine in self.stages.values_mut() {
            engine.discard(batch);
            if gradients {
                engine.undo_statistics(batch);
                engine.zero_grad();
            }
        }
        // A round that failed may have gathered parameters.
        self.stages.values_mut().try_for_each(Engine::reshard).map_err(engine_failure)
    }

    fn snapshot(&self, parameters: &[StageId], optimizer: &[StageId]) -> Result<Outcome<Payload>, Failure> {
        let mut tensors = Vec::new();
        for (stage, engine) in &self.stages {
            let all = parameters.contains(stage);
            if all {
                tensors.extend(engine.state().map_err(engine_failure)?);
            }
            if optimizer.contains(stage) {
                let optimizer_tensors = engine.optimizer_state(!all).map_err(engine_failure)?.into_iter();
                let named = |(name, start, value): (String, Option<u64>, Tensor)| {
                    (StateName::of_optimizer(&name, start).to_string(), value)
                };
                tensors.extend(optimizer_tensors.map(named));
            }
        }
        let payload = |(name, value): (String, Tensor)| Ok((name, to_payload(&value).map_err(tensor_failure)?));
        Ok(Outcome::State { tensors: tensors.into_iter().map(payload).collect::<Result<_, _>>()? })
    }

    fn digests(&self) -> Result<Outcome<Payload>, Failure> {
        let mut digests = Vec::new();
        for (stage, engine) in &self.stages {
            for (name, value) in engine.replicated_trained_params() {
                digests.push((*stage, name.to_string(), digest(value)?));
            }
        }
        Ok(Outcome::Digests { digests })
    }

    fn execute(&mut self, task: Task<Payload>, out: EmitPayload<'_>) -> Result<Outcome<Payload>, Failure> {
        match task {
            Task::Build { stages, buckets, sharding, shard_ids, seed } => {
                self.release(sharding);
                for spec in stages {
                    let shard_id = shard_ids.get(&spec.stage).copied();
                    self.build(spec, buckets, sharding.filter(|_| shard_id.is_some()), shard_id, seed)?;
                }
            }
            Task::SetOptimizer(spec) => self.stages.values_mut().for_each(|engine| engine.set_optimizer(spec)),
            Task::Forward { stage, key, step, mode, cached, inputs, export, loss, apart, finite } => {
                let mode = match mode {
                    message::Mode::Train => Mode::Train,
                    message::Mode::Eval => Mode::Eval,
                };
                let engine = self.stage(stage)?;
                engine.begin_cached_pass(cached.as_ref()).map_err(engine_failure)?;
                // Such a pass is not learned from.
                let everywhere = finite == Finite::Everywhere;
                engine.set_check_finite(everywhere);
                let pass = Pass { key, step, mode, defer_statistics: apart || everywhere };
                return self.forward(stage, &pass, &inputs, &export, (loss, finite));
            }
            Task::Backward { stage, key, grads, input_only, branch } => {
                return self.backward(stage, key, &grads, input_only, (branch, out));
            }
            Task::BackwardWeight { stage, key, branch } => self.backward_weight(stage, key, (branch, out))?,
            Task::Reduce { stage, batch, buckets, statistics } => {
                let buckets =
                    buckets.iter().map(|shards| nested(shards, decompressed_sums)).collect::<Result<_, _>>()?;
                self.stage(stage)?.reduce(batch, buckets, nested(&statistics, to_tensors)?).map_err(engine_failure)?;
            }
            Task::AllReduce { stage, batch, statistics } => {
                let statistics = nested(&statistics, to_tensors)?;
                let mut replicas = self.communicators.for_stage(stage)?;
                let engine = self.stages.get_mut(&stage);
                let engine = engine.ok_or_else(|| Failure::new(format!("{stage} is not on this worker")))?;
                engine.all_reduce(batch, statistics, &mut replicas).map_err(engine_failure)?;
            }
            Task::MakeIds { stages } => return Ok(Outcome::UniqueIds { ids: self.communicators.unique_ids(&stages)? }),
            Task::Communicate { stages } => self.communicators.connect(&stages, self.device)?,
            Task::TiedGrads { stage } => {
                return tied_outcome(&self.stage(stage)?.tied_grads().map_err(engine_failure)?)
            }
            Task::GradNorm { stage, tied } => {
                let squares = self.stage(stage)?.grad_norm(to_tensors_by_stage(&tied)?).map_err(engine_failure)?;
                return Ok(Outcome::Norms { squares });
            }
            Task::OptimStep { stage, update, tied: from_others, health } => {
                let from_others = to_tensors_by_stage(&from_others)?;
                let engine = self.stage(stage)?;
                let before = engine.version();
                let stepped = step(engine, stage, (&update, health), from_others, out);
                let updating = self.stage(stage)?.version() != before;
                return stepped.map_err(|failure| Failure { updating, ..failure });
            }
            Task::AllGather { stage, buckets } => {
                let buckets = buckets.iter().map(|shards| nested(shards, to_tensors)).collect::<Result<_, _>>()?;
                self.stage(stage)?.all_gather(buckets).map_err(engine_failure)?;
            }
            Task::Share { stage } => emit_shard(self.stage(stage)?, stage, out)?,
            Task::Reshard { stage } => self.stage(stage)?.reshard().map_err(engine_failure)?,
            Task::UpdateTied { stage, tied } => {
                self.stage(stage)?.update_tied(to_tensors_by_stage(&tied)?).map_err(engine_failure)?;
            }
            Task::Measure { probes } => {
                let times = probes
                    .iter()
                    .map(|probe| measure(probe, self.device, &self.custom_layers))
                    .collect::<Result<_, _>>();
                return Ok(Outcome::Measured { times: times.map_err(engine_failure)? });
            }
            Task::Discard { batch, gradients } => self.discard(batch, gradients)?,
            Task::Snapshot { parameters, optimizer } => return self.snapshot(&parameters, &optimizer),
            Task::Digest => return self.digests(),
            Task::Load { tensors, optimizer: false } => self.load(&tensors)?,
            Task::Load { tensors, optimizer: true } => self.load_with_optimizer(tensors)?,
            Task::Files { files } => self.custom_layers.set_torchscript_files(verify_sha256(files)?),
        }
        Ok(Outcome::Done)
    }
}

fn nested<T>(
    lists: &[Vec<Payload>],
    each: impl Fn(&[Payload]) -> Result<Vec<T>, Failure>,
) -> Result<Vec<Vec<T>>, Failure> {
    lists.iter().map(|list| each(list)).collect()
}

/// Refuses a loss that is not finite, before a parameter changes.
fn check_loss(loss: f32, finite: Finite, task: &LossInputs<'_>) -> Result<(), Failure> {
    if loss.is_finite() || finite == Finite::Nowhere {
        return Ok(());
    }
    let is_finite = |tensor: &Tensor| -> Result<bool, Failure> {
        let all = || tensor.f_detach()?.f_isfinite()?.f_all()?.f_int64_value(&[]);
        all().map(|all| all != 0).map_err(|e| Failure::new(e.to_string()))
    };
    let why = match finite {
        Finite::Nowhere | Finite::Loss => "",
        Finite::Everywhere if !is_finite(task.target)? => ": the target has numbers that are not finite",
        Finite::Everywhere if !is_finite(task.prediction)? => ": the model's output has infinities",
        Finite::Everywhere => ", and what goes into it is finite",
    };
    Err(Failure { not_finite: true, ..Failure::new(format!("the loss is {loss}{why}")) })
}

/// An optimizer step, and what of it others wait for.
fn step(
    engine: &mut Engine,
    stage: StageId,
    (update, health): (&Update, bool),
    from_others: TensorsByStage,
    out: EmitPayload<'_>,
) -> Result<Outcome<Payload>, Failure> {
    let mut layers = Vec::new();
    let owner_values =
        engine.optim_step_with_health(update, from_others, health.then_some(&mut layers)).map_err(engine_failure)?;
    if !layers.is_empty() {
        out(HandedOut::Health(layers));
    }
    if !engine.stage().shards_parameters {
        emit_shard(engine, stage, out)?;
    }
    tied_outcome(&owner_values)
}

/// This replica's part of the parameters, for the others.
fn emit_shard(engine: &Engine, stage: StageId, out: EmitPayload<'_>) -> Result<(), Failure> {
    let parts = engine.emit_shard(|bucket, slices| {
        out(to_payload_output(HandedOut::Updated { stage, bucket, slices })?);
        Ok(())
    });
    parts.map_err(engine_failure)
}

/// A SHA-256 of all trained parameters that every replica has, what they are called, and how large they are.
fn digest(value: &Tensor) -> Result<[u8; 32], Failure> {
    let payload = to_payload(value).map_err(tensor_failure)?;
    let mut hash = Sha256::new();
    hash.update(format!("{}\n", payload.meta));
    hash.update(&payload.bytes);
    Ok(hash.finalize().into())
}

/// Files by their SHA-256, under which the boss names them.
fn verify_sha256(files: Vec<(String, Payload)>) -> Result<BTreeMap<String, Bytes>, Failure> {
    let file = |(hash, payload): (String, Payload)| {
        let found = Sha256::digest(&payload.bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        match found == hash {
            true => Ok((hash, payload.bytes)),
            false => Err(Failure::new(format!("a file came with the SHA-256 {found} instead of {hash}"))),
        }
    };
    files.into_iter().map(file).collect()
}

fn stage_config(spec: StageSpec, seed: u64, (device, custom_layers): (Device, CustomLayers)) -> StageConfig {
    let inputs = spec.inputs.iter().map(|input| StageInput {
        value: input.value,
        needs_grad: input.needs_grad,
        sum_here: input.sum_here,
    });
    StageConfig {
        buckets: Vec::new(),
        shard_id: None,
        shards_gradients: false,
        shards_parameters: false,
        inputs: inputs.collect(),
        outputs: spec.outputs.iter().map(|output| output.value).collect(),
        tied_copies: spec.tied_copies,
        tied_owners: spec.tied_owners,
        layers: spec.layers,
        seed,
        device,
        custom_layers,
    }
}
