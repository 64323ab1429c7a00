//! The stages of a worker: tasks in, libtorch at work, outcomes out.

use crate::compute::collective::Communicators;
use crate::compute::device_tensor::TaskWork;
use crate::compute::failures::{engine_failure, tensor_failure};
use crate::compute::late_result::{LateLoss, LateResult};
use crate::compute::measure::measure;
use crate::compute::peak_memory::PeakMemoryFile;
use crate::compute::state_view::OpenViews;
use crate::compute::task_args::{EmitPayload, ForwardArgs, GradientRoute, StepArgs};
use crate::compute::task_location::TaskLocation;
use crate::engine::{CustomLayers, Engine, HealthCheck, Mode, Pass};
use pipeline::ids::StageId;
use pipeline::message::{self, Failure};
use pipeline::optimizer::OptimizerSpec;
use pipeline::task::{EarlyOutput, LayerProbe, Outcome, Task, TaskError};
use pipeline::watch::FiniteCheck;
use pipeline::LoadContent;
use runtime::{Compute, Interrupt, PendingWork, TaskTensor};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tch::Device;
use tensor::nccl::Nccl;
use tensor::transfer::Event;

/// The stages of one worker, on one device.
pub struct StageCompute {
    pub(super) device: Device,
    pub(super) stages: BTreeMap<StageId, Engine>,
    pub(super) custom_layers: CustomLayers,
    pub(super) communicators: Communicators,
    /// The folder whose files have the weights that this worker reads itself.
    pub(super) weights_folder: Option<PathBuf>,
    /// The state that is handed out without copies.
    pub(super) views: OpenViews,
    /// Whether a task failed, and no `Discard` has come since.
    failed: bool,
    /// The place of the current task.
    pub(super) location: TaskLocation,
    /// The losses of this step that nobody has checked.
    pub(super) losses: Vec<Arc<LateLoss>>,
    /// What the device still computes for the current task.
    pub(super) late: Option<LateResult>,
    /// The device's work for the last task.
    pending: Option<Box<dyn PendingWork>>,
    /// Written after each update.
    peak_memory: Option<PeakMemoryFile>,
}

impl StageCompute {
    /// A worker without stages, with the layers that every worker has.
    pub fn new(device: Device) -> Self {
        Self::with_custom_layers(device, CustomLayers::default())
    }

    /// A worker without stages, with further layers. Must be made on the thread that computes.
    pub fn with_custom_layers(device: Device, custom_layers: CustomLayers) -> Self {
        tensor::threads::apply_to_this_thread();
        StageCompute {
            device,
            stages: BTreeMap::new(),
            custom_layers,
            communicators: Communicators::default(),
            weights_folder: None,
            views: OpenViews::default(),
            failed: false,
            location: TaskLocation::default(),
            losses: Vec::new(),
            late: None,
            pending: None,
            peak_memory: None,
        }
    }

    /// Sets the folder of weights that this worker reads from its own files.
    #[must_use]
    pub fn with_weights(self, folder: Option<PathBuf>) -> Self {
        StageCompute { weights_folder: folder, ..self }
    }

    /// Sets the file for the most memory that this process took of its GPU. It is written before a
    /// step is reported.
    #[must_use]
    pub fn with_peak_memory(self, file: Option<PathBuf>) -> Self {
        StageCompute { peak_memory: file.map(PeakMemoryFile::new), ..self }
    }

    /// Sets the library that sums gradients over replicas. `interrupt` ends its waits for other
    /// replicas.
    #[must_use]
    pub fn with_nccl(self, nccl: Option<Arc<Nccl>>, interrupt: Interrupt) -> Self {
        StageCompute { communicators: Communicators::new(nccl, interrupt), ..self }
    }

    pub(super) fn stage(&mut self, stage: StageId) -> Result<&mut Engine, Failure> {
        self.stages
            .get_mut(&stage)
            .ok_or_else(|| Failure::new(format!("{stage} is not on this worker")))
    }
}

impl Compute for StageCompute {
    fn prepare(&mut self, task: &Task<TaskTensor>) {
        if self.ends_views(task) {
            self.views.copy_rest();
        }
        if needs_parameters(task) {
            let mut stages = self.stages.values_mut();
            let draw = || stages.try_for_each(Engine::draw_parameters);
            // An error comes again in `run`, which reports it.
            drop(tensor::panics::catch(draw));
        }
    }

    fn run(
        &mut self,
        task: Task<TaskTensor>,
        emit: &mut dyn FnMut(EarlyOutput<TaskTensor>),
    ) -> Result<Outcome<TaskTensor>, TaskError> {
        self.location = TaskLocation::of(&task);
        let before = self.updated_version(&task);
        let result = match &task {
            Task::OptimStep { .. } | Task::AllGather { .. } | Task::AllReduce { .. }
                if self.failed =>
            {
                Err(Failure::new("an earlier task of this step failed"))
            }
            _ => {
                if let Task::Discard { gradients, .. } = task {
                    self.failed = false;
                    self.losses.clear();
                    self.communicators.clear_interrupt();
                    // Other replicas may have left a sum in which this one took part.
                    if gradients {
                        self.communicators.clear();
                    }
                }
                let done = tensor::panics::catch(|| self.execute(task, emit));
                done.unwrap_or_else(|error| Err(tensor_failure(error)))
            }
        };
        self.failed |= result.is_err();
        let updated = before.is_some_and(|(stage, version)| self.version(stage) != Some(version));
        if let (Some(file), Some(_)) = (&mut self.peak_memory, before) {
            file.update(self.device);
        }
        let late = self.late.take();
        let result = result.and_then(|outcome| {
            self.pending = self.pending_work(late)?;
            Ok(outcome)
        });
        result.map_err(|failure| TaskError { failure: self.location.annotate(failure), updated })
    }

    fn pending(&mut self) -> Option<Box<dyn PendingWork>> {
        self.pending.take()
    }
}

impl StageCompute {
    /// Waits for the losses of this step, and refuses one that is not finite: before a parameter
    /// changes, or gradients leave this worker.
    pub(super) fn check_losses(&mut self) -> Result<(), Failure> {
        self.losses.drain(..).try_for_each(|loss| loss.check().map(drop))
    }

    /// The device's work up to now.
    fn pending_work(
        &self,
        late: Option<LateResult>,
    ) -> Result<Option<Box<dyn PendingWork>>, Failure> {
        let location = self.location;
        let end = Event::record(self.device).map_err(tensor_failure)?;
        let work = |end| -> Box<dyn PendingWork> { Box::new(TaskWork { end, location, late }) };
        Ok(end.map(work))
    }

    /// The stage whose parameters a task updates, and their version before it.
    fn updated_version(&self, task: &Task<TaskTensor>) -> Option<(StageId, u64)> {
        let Task::OptimStep { stage, .. } = task else { return None };
        Some((*stage, self.version(*stage)?))
    }

    fn version(&self, stage: StageId) -> Option<u64> {
        self.stages.get(&stage).map(Engine::version)
    }

    /// Whether a task changes what [views](OpenViews) of the state may read, or needs its memory.
    fn ends_views(&self, task: &Task<TaskTensor>) -> bool {
        match task {
            Task::Build { .. }
            | Task::SetOptimizer(_)
            | Task::UpdateTied { .. }
            | Task::Load { .. } => true,
            // A skipped step only clears gradients, and restores buffers, which no view reads.
            Task::OptimStep { update, .. } => !update.skip,
            // It makes sharded parameters anew, which no view reads. Others are written to.
            Task::AllGather { stage, .. } => {
                self.stages.get(stage).is_none_or(|engine| !engine.stage().shards_parameters)
            }
            // It lets go of gathered parameters, which no view reads.
            Task::Reshard { .. } | Task::Discard { .. } => false,
            // These write to gradients and buffers alone, or to nothing of a stage.
            Task::Forward { .. }
            | Task::Backward { .. }
            | Task::BackwardWeight { .. }
            | Task::Reduce { .. }
            | Task::AllReduce { .. }
            | Task::TiedGrads { .. }
            | Task::GradNorm { .. }
            | Task::EmitShard { .. }
            | Task::Files { .. }
            | Task::MakeIds { .. }
            | Task::Communicate { .. }
            | Task::Measure { .. }
            | Task::Snapshot { .. }
            | Task::Digest => false,
        }
    }

    fn execute(
        &mut self,
        task: Task<TaskTensor>,
        emit: EmitPayload<'_>,
    ) -> Result<Outcome<TaskTensor>, Failure> {
        if needs_parameters(&task) {
            self.draw_parameters()?;
        }
        match task {
            Task::Build { stages, settings } => self.build(stages, &settings)?,
            Task::SetOptimizer(spec) => self.set_optimizer(spec),
            Task::Files { files } => self.set_files(files)?,
            Task::Forward {
                stage,
                key,
                step,
                mode,
                kv_cache,
                inputs,
                export,
                last_position,
                loss,
                defer_statistics,
                finite,
            } => {
                let mode = engine_mode(mode);
                let stage_engine = self.stage(stage)?;
                stage_engine.begin_cached_pass(kv_cache.as_ref()).map_err(engine_failure)?;
                // A pass that checks every number changes no running statistics.
                let check_finite = finite == FiniteCheck::All;
                let defer_statistics = defer_statistics || check_finite;
                let pass = Pass { key, step, mode, defer_statistics, check_finite };
                let args = ForwardArgs { inputs, export, last_position, loss, finite };
                return self.forward(stage, &pass, args);
            }
            Task::Backward { stage, key, grads, input_only: true, .. } => {
                return self.backward_input(stage, key, &grads);
            }
            Task::Backward { stage, key, grads, leaf: branch, .. } => {
                return self.backward(stage, key, &grads, GradientRoute { branch, emit });
            }
            Task::BackwardWeight { stage, key, leaf: branch } => {
                self.backward_weight(stage, key, GradientRoute { branch, emit })?;
            }
            Task::Reduce { stage, batch, buckets, statistics } => {
                self.reduce(stage, batch, &buckets, &statistics)?;
            }
            Task::AllReduce { stage, batch, statistics } => {
                self.all_reduce(stage, batch, &statistics)?;
            }
            Task::MakeIds { stages } => {
                return Ok(Outcome::UniqueIds { ids: self.communicators.unique_ids(&stages)? });
            }
            Task::Communicate { stages } => self.communicators.connect(&stages, self.device)?,
            Task::TiedGrads { stage } => return self.tied_grads(stage),
            Task::GradNorm { stage, tied } => return self.grad_norm(stage, &tied),
            Task::OptimStep { stage, update, tied, health } => {
                let check = if health { HealthCheck::On } else { HealthCheck::Off };
                return self.optim_step(stage, &StepArgs { update, tied, check }, emit);
            }
            Task::UpdateTied { stage, tied } => self.update_tied(stage, &tied)?,
            Task::AllGather { stage, buckets } => self.all_gather(stage, &buckets)?,
            Task::EmitShard { stage } => self.emit_shard(stage, emit)?,
            Task::Reshard { stage } => self.stage(stage)?.reshard().map_err(engine_failure)?,
            Task::Measure { probes } => return self.measure(&probes),
            Task::Discard { batch, gradients: true } => self.discard_step(batch)?,
            Task::Discard { batch, gradients: false } => self.discard_microbatches(batch)?,
            Task::Snapshot { parameters, optimizer, form } => {
                return self.snapshot(&parameters, &optimizer, form);
            }
            Task::Digest => return self.digests(),
            Task::Load { tensors, content } => match content {
                LoadContent::Part => self.load(&tensors)?,
                LoadContent::WeightSources => self.load_from_files(&tensors)?,
                LoadContent::WholeState => self.load_with_optimizer(tensors)?,
            },
        }
        Ok(Outcome::Done)
    }

    fn draw_parameters(&mut self) -> Result<(), Failure> {
        self.stages.values_mut().try_for_each(Engine::draw_parameters).map_err(engine_failure)
    }

    fn set_optimizer(&mut self, spec: OptimizerSpec) {
        self.stages.values_mut().for_each(|engine| engine.set_optimizer(spec));
    }

    fn measure(&self, probes: &[LayerProbe]) -> Result<Outcome<TaskTensor>, Failure> {
        let times = probes.iter().map(|probe| measure(probe, self.device, &self.custom_layers));
        let times = times.collect::<Result<_, _>>().map_err(engine_failure)?;
        Ok(Outcome::Measured { times })
    }
}

fn engine_mode(mode: message::Mode) -> Mode {
    match mode {
        message::Mode::Train => Mode::Train,
        message::Mode::Eval => Mode::Eval,
    }
}

/// Whether a task reads or updates parameters. Those that come before the state of a run is loaded
/// do not, so a run that loads its state draws no initial values.
fn needs_parameters(task: &Task<TaskTensor>) -> bool {
    match task {
        Task::Build { .. }
        | Task::SetOptimizer(_)
        | Task::Files { .. }
        | Task::Load { .. }
        | Task::MakeIds { .. }
        | Task::Communicate { .. }
        | Task::Measure { .. }
        | Task::Discard { .. } => false,
        Task::Forward { .. }
        | Task::Backward { .. }
        | Task::BackwardWeight { .. }
        | Task::Reduce { .. }
        | Task::AllReduce { .. }
        | Task::TiedGrads { .. }
        | Task::GradNorm { .. }
        | Task::OptimStep { .. }
        | Task::UpdateTied { .. }
        | Task::AllGather { .. }
        | Task::EmitShard { .. }
        | Task::Reshard { .. }
        | Task::Snapshot { .. }
        | Task::Digest => true,
    }
}
