//! A session with the workers: one attempt at each call, without recovery.

use super::learning_monitor::LearningMonitor;
use super::nccl_link::NcclLink;
use super::position::Position;
use crate::data::tensor_payload::owned_from_payload;
use crate::data::worker_data_sets::WorkerDataSets;
use crate::data::Contents;
use crate::events::{Event, Events};
use crate::settings::strategy::Strategy;
use crate::settings::user_settings::Settings;
use crate::tuning::collective;
use crate::tuning::replica_devices::{self, device_kind, UnlikeReplicas};
use crate::tuning::schedule_state::ScheduleState;
use crate::tuning::worker_memory;
use crate::workers::host::Workers;
use crate::workers::local_processes::WorkerProcesses;
use crate::{Batch, BossManError, Model};
use bytes::Bytes;
use layerspec::{DType, ValueId};
use link::Payload;
use pipeline::boss::{Instruction, IntoRequest, RoundResults, RunRequest, Setup};
use pipeline::effect::BossNotice;
use pipeline::ids::{Slot, StageId, WorkerId};
use pipeline::loss_scale::LossScale;
use pipeline::message::{Mode, Reduction};
use pipeline::plan::PlanError;
use pipeline::replicas::{Collective, MicrobatchAssignment};
use pipeline::samples::DataSpec;
use pipeline::schedule::Action;
use pipeline::{LossSpec, OptimizerSpec, Plan, TensorMeta};
use runtime::Handle;
use tch::Tensor;
use tensor::TensorError;

/// A model on its workers. It makes one attempt at a call; recovery is the caller's. A loss of
/// workers replaces the whole trainer.
pub(crate) struct Trainer {
    pub(crate) model: Model,
    pub(crate) settings: Settings,
    pub(crate) strategy: Strategy,
    pub(crate) plan: Plan,
    pub(crate) handle: Handle,
    pub(crate) position: Position,
    pub(crate) loss: Option<LossSpec>,
    /// The optimizer that the workers have.
    pub(crate) optimizer: Option<OptimizerSpec>,
    pub(crate) schedules: ScheduleState,
    pub(crate) nccl: NcclLink,
    /// Whether replicas of a stage compute on unlike devices, as the user allowed.
    pub(crate) has_unlike_replicas: bool,
    pub(crate) monitor: LearningMonitor,
    /// The data sets that workers read from their own files.
    pub(crate) data: WorkerDataSets,
    /// Whether parameters were loaded.
    pub(crate) has_loaded: bool,
    pub(crate) events: Events,
    /// Keeps local workers running.
    processes: WorkerProcesses,
}

impl Trainer {
    /// Cuts the model for the workers that have joined, and starts a session with them.
    ///
    /// # Errors
    /// The model cannot be cut as asked. The error states the reason.
    pub(crate) fn start(
        model: Model,
        settings: Settings,
        workers: Workers,
    ) -> Result<Self, BossManError> {
        let Workers { listener, local, runtime, count, events, host } = workers;
        let infos: Vec<_> = listener.joined().take(count).collect();
        let memory = worker_memory::for_cuts(&infos, settings.parallel.shortages);
        let plan = settings.parallel.plan(model.graph(), count, &memory)?;
        // Whether workers share a device is a guess by names, so each is compared with all of it.
        let own: Vec<_> = infos.iter().map(|info| info.memory_bytes).collect();
        plan.check_memory(&own)?;
        let strategy = Strategy::new(&settings, model.graph(), count);
        let _inside = runtime.enter();
        let observers = events.clone();
        let notice = move |notice: BossNotice| observers.report(&Event::notice(notice));
        let setup = Setup {
            seed: settings.seed,
            determinism: settings.determinism,
            initialization: settings.initialization,
            buckets: strategy.buckets,
            max_pending_batches: settings.in_flight,
            ..Setup::new(plan.clone())
        };
        let handle = runtime::start(listener, setup, notice)?;
        if host.is_open_to_joins() {
            // A pool takes workers in once it has opened.
            handle.offer_places(1);
        }
        let processes = local.map(|local| local.report_exits(handle.clone())).unwrap_or_default();
        let mut trainer = Trainer {
            position: Position::new(settings.scales_loss.then(LossScale::default)),
            loss: settings.loss.clone(),
            monitor: LearningMonitor::new(settings.guards),
            model,
            settings,
            strategy,
            plan,
            handle,
            optimizer: None,
            schedules: ScheduleState::default(),
            nccl: NcclLink::default(),
            has_unlike_replicas: false,
            data: WorkerDataSets::default(),
            has_loaded: false,
            events,
            processes,
        };
        trainer.choose_collective()?;
        Ok(trainer)
    }

    /// Sends every worker its stage, and connects workers that exchange tensors. Training begins
    /// from nothing, without an optimizer.
    pub(crate) async fn distribute(&mut self) -> Result<(), BossManError> {
        let scale = self.settings.scales_loss.then(LossScale::default);
        self.position.begin_again(scale);
        self.monitor.reset();
        (self.optimizer, self.has_loaded) = (None, false);
        self.send_files().await?;
        self.data.reset_opened();
        self.nccl.disconnect();
        self.call(Instruction::Distribute).await
    }

    /// Sends every worker the files that layers are built from.
    async fn send_files(&self) -> Result<(), BossManError> {
        let files = self.file_payloads().into_iter();
        let files: Vec<_> =
            files.map(|(hash, payload)| (hash, self.handle.slots.insert(payload))).collect();
        match files.is_empty() {
            true => Ok(()),
            false => self.call(Instruction::SendFiles(files)).await,
        }
    }

    /// The files that layers are built from, by their SHA-256.
    pub(crate) fn file_payloads(&self) -> Vec<(String, Payload)> {
        let payload = |bytes: &Bytes| Payload {
            meta: TensorMeta { dtype: DType::UInt8, shape: vec![bytes.len() as u64] },
            bytes: bytes.clone(),
        };
        self.model.files().map(|(hash, bytes)| (hash.clone(), payload(bytes))).collect()
    }

    /// Has the workers that take samples open a data set among their own files.
    pub(crate) async fn open_data(&mut self, spec: DataSpec) -> Result<(), BossManError> {
        self.register(spec)?;
        self.data.open(&self.handle).await
    }

    /// Registers the data set of a batch, if workers read it.
    pub(crate) fn register_data_of(&mut self, batch: &Batch) -> Result<(), BossManError> {
        let Contents::Indices(indices) = batch.contents() else { return Ok(()) };
        indices.data.spec(self.model.graph()).map_or(Ok(()), |spec| self.register(spec))
    }

    fn register(&mut self, spec: DataSpec) -> Result<(), BossManError> {
        if !self.data.contains(&spec) {
            self.refuse_in_pool("open_data")?;
            self.data.register(spec);
        }
        Ok(())
    }

    /// Sets the optimizer on every worker, with fresh state.
    pub(crate) async fn send_optimizer(
        &mut self,
        optimizer: OptimizerSpec,
    ) -> Result<(), BossManError> {
        self.call(Instruction::SetOptimizer(optimizer)).await?;
        self.optimizer = Some(optimizer);
        Ok(())
    }

    /// Chooses how replicas sum their gradients in this plan, and reports it if there was a choice.
    ///
    /// # Errors
    /// NCCL was requested, and these workers cannot use it; or replicas compute on unlike devices,
    /// which the user did not allow.
    pub(crate) fn choose_collective(&mut self) -> Result<(), BossManError> {
        let workers = self.handle.workers();
        let device_of = |worker: WorkerId| workers.get(usize::from(worker.0)).map(device_kind);
        let unlike = replica_devices::unlike(self.plan.stage_placement.iter(), device_of);
        self.judge_replicas(unlike)?;
        let decision =
            collective::decide(&self.settings.parallel, &self.plan, self.handle.workers())?;
        if let Some(text) = &decision.description {
            self.events.report(&Event::notice(text));
        }
        self.nccl = NcclLink::new(decision);
        Ok(())
    }

    /// Warns once of replicas on unlike devices.
    ///
    /// # Errors
    /// The user did not allow them.
    pub(crate) fn judge_replicas(
        &mut self,
        unlike: Option<UnlikeReplicas>,
    ) -> Result<(), BossManError> {
        let Some(unlike) = unlike else { return Ok(()) };
        let warning = unlike.judge(self.settings.determinism)?;
        if !self.has_unlike_replicas {
            self.events.warn(warning);
        }
        self.has_unlike_replicas = true;
        Ok(())
    }

    /// Lets workers join and leave from now on.
    pub(crate) fn open_pool(&mut self) {
        self.strategy.open_pool(&self.plan);
        // The choice is for workers that stay.
        self.nccl = NcclLink::default();
    }

    /// Closes all connections, and ends local workers.
    pub(crate) fn disconnect(&mut self) {
        self.handle.disconnect_all();
        self.processes = WorkerProcesses::default();
    }

    pub(crate) async fn call<R: IntoRequest>(&self, request: R) -> Result<R::Answer, BossManError> {
        Ok(self.handle.call(request).await?)
    }

    /// Refuses a call that sets state in a pool: a worker that joins copies the state of others, so
    /// state that is set would not reach all of them.
    pub(crate) fn refuse_in_pool(&self, call: &str) -> Result<(), BossManError> {
        match self.strategy.is_pool {
            true => Err(BossManError::Usage(format!("{call}: call it before open_pool()"))),
            false => Ok(()),
        }
    }

    /// How gradients are summed.
    pub(crate) fn reduction(&self) -> Reduction {
        match self.nccl.is_used() {
            true => Reduction::Collective,
            false => self.strategy.reduction,
        }
    }

    /// Runs a round. If training fails, all gradients and all batches in flight are void.
    pub(crate) async fn run_round(
        &mut self,
        mut run: RunRequest,
    ) -> Result<RoundResults, BossManError> {
        let (batch, training) = (run.batch, run.mode == Mode::Train);
        let may_fall_back = self.settings.parallel.collective == Collective::Auto;
        let fallback = may_fall_back.then_some(self.strategy.reduction);
        let result = match self.nccl.connect(&self.handle, &mut run, fallback, &self.events).await {
            Ok(()) => self.send_round(run).await,
            Err(error) => {
                self.free_slots(run);
                if training && !error.was_refused() {
                    self.call(Instruction::Discard { batch }).await.ok();
                }
                Err(error)
            }
        };
        if training && result.as_ref().is_err_and(|error| !error.was_refused()) {
            self.void_training(batch).await;
        }
        result
    }

    async fn send_round(&mut self, run: RunRequest) -> Result<RoundResults, BossManError> {
        if run.mode != Mode::Train {
            return Ok(*self.call(Box::new(run)).await?);
        }
        // If this future is dropped, the round fails, and communicators are lost.
        let connected = self.nccl.disconnect();
        let result = self.call(Box::new(run)).await;
        self.nccl.set_connected(connected);
        Ok(*result?)
    }

    /// Forgets gradients, communicators and batches after a failed round. The workers have
    /// discarded `batch`.
    async fn void_training(&mut self, batch: u64) {
        self.nccl.disconnect();
        let in_flight = std::mem::take(&mut self.position.in_flight);
        self.position.clear_in_flight();
        for other in in_flight.batches.into_iter().filter(|other| *other != batch) {
            // The first error reports a lost worker.
            self.call(Instruction::Discard { batch: other }).await.ok();
        }
    }

    /// Frees the tensors of a round that is not sent.
    fn free_slots(&self, run: RunRequest) {
        let all = Box::new(run).into_request().into_slots();
        all.into_iter().for_each(|slot| drop(self.handle.slots.remove(slot)));
    }

    /// A round over one microbatch in which every stage runs at most one action, on its first
    /// replica.
    pub(crate) fn single_microbatch_round(
        &self,
        action: impl Fn(StageId) -> Option<Action>,
    ) -> RunRequest {
        let microbatch_assignment = MicrobatchAssignment::default();
        let each = |worker| {
            let worker = WorkerId(worker);
            let takes = |action: &Action| match action.microbatch() {
                Some(m) => {
                    microbatch_assignment.worker(&self.plan.stage_placement, action.stage(), m)
                        == Some(worker)
                }
                None => true,
            };
            let stages = self.plan.stage_placement.stages_of(worker);
            stages.filter_map(&action).filter(takes).collect()
        };
        let actions = (0..self.plan.workers() as u16).map(each).collect();
        let run = RunRequest::of(self.position.batch, actions, self.reduction());
        RunRequest { step: self.position.counters.step, mode: self.position.mode, ..run }
    }

    /// Runs actions that need no tensors, if there are some.
    pub(crate) async fn run_actions(
        &mut self,
        actions: Vec<Vec<Action>>,
    ) -> Result<(), BossManError> {
        if actions.is_empty() {
            return Ok(());
        }
        let batch = self.position.next_batch();
        self.run_round(RunRequest::of(batch, actions, self.reduction())).await.map(drop)
    }

    /// Adds the all-gathers of parameters to a round, if replicas shard them.
    pub(crate) fn with_parameter_gathers(
        &self,
        run: RunRequest,
    ) -> Result<RunRequest, BossManError> {
        let actions = self.plan.layout().gathered(run.actions).map_err(PlanError::from)?;
        Ok(RunRequest { actions, ..run })
    }

    pub(crate) fn insert_slots(
        &self,
        payloads: Vec<(u32, ValueId, Payload)>,
    ) -> Vec<(u32, ValueId, Slot)> {
        payloads
            .into_iter()
            .map(|(index, value, payload)| (index, value, self.handle.slots.insert(payload)))
            .collect()
    }

    /// The model's outputs of one microbatch, in their order. In training mode they require grad.
    pub(crate) fn outputs(
        &self,
        outputs: Vec<(u32, ValueId, Slot)>,
        mode: Mode,
    ) -> Result<Vec<Tensor>, BossManError> {
        let mut tensors = Vec::new();
        for (_, value, slot) in outputs {
            let payload = self.handle.slots.remove(slot);
            let payload = payload
                .ok_or_else(|| BossManError::Usage(format!("{slot} is empty; please report it")))?;
            let tensor = owned_from_payload(&payload)?;
            let tensor = match mode == Mode::Train && tensor.is_floating_point() {
                true => tensor.f_set_requires_grad(true).map_err(TensorError::from)?,
                false => tensor,
            };
            tensors.push((value, tensor));
        }
        let place = |value: &ValueId| self.model.graph().outputs().iter().position(|o| o == value);
        tensors.sort_by_key(|(value, _)| place(value));
        Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
    }

    /// Frees what the workers store of a batch.
    pub(crate) async fn discard(&mut self, batch: u64) -> Result<(), BossManError> {
        self.position.in_flight.remove(batch);
        self.call(Instruction::Discard { batch }).await
    }

    /// Frees what the workers store of the batch of [`crate::BossMan::forward`], if it gets no
    /// backward pass.
    pub(crate) async fn discard_implicit_batch(&mut self) -> Result<(), BossManError> {
        match self.position.in_flight.implicit_batch {
            Some(batch) => self.discard(batch).await,
            None => Ok(()),
        }
    }

    /// Frees what the workers store of a batch whose outputs nobody got.
    pub(crate) async fn discard_unclaimed_batch(&mut self) -> Result<(), BossManError> {
        match self.position.in_flight.unclaimed {
            Some(batch) => self.discard(batch).await,
            None => Ok(()),
        }
    }

    pub(crate) fn required_loss(&self) -> Result<&LossSpec, BossManError> {
        let missing = || {
            BossManError::Usage(
                "train_step needs a loss: Builder::loss or BossMan::set_loss".into(),
            )
        };
        self.loss.as_ref().ok_or_else(missing)
    }
}
