//! The boss: a model spread over workers, as an object.

use crate::output;
use crate::pool::Pool;
use crate::recovery::replay::Replay;
use crate::session::accumulated_gradients::AccumulatedGradients;
use crate::session::batches_in_flight::BatchesInFlight;
use crate::session::guards::{Guards, LearningMonitor, NonFinite};
use crate::session::settings::Settings;
use crate::session::worker_data::WorkerDataSets;
use crate::tuning::collective;
use crate::tuning::schedule_state::{LastStep, ScheduleState};
use crate::workers::host::{Host, Workers};
use crate::workers::local_processes::WorkerProcesses;
use crate::{BossManError, Model};
use bytes::Bytes;
use layerspec::{DType, Precision, Recompute};
use link::Payload;
use pipeline::boss::Request;
use pipeline::effect::Answer;
use pipeline::loss_scale::LossScale;
use pipeline::lr_schedule::LrSchedule;
use pipeline::message::Mode;
use pipeline::plan::PlanError;
use pipeline::replicas::{Collective, Compress, Replicas, Sharding};
use pipeline::{Cuts, LossSpec, OptimizerSpec, Placement, Plan, ScheduleKind, TensorMeta};
use runtime::Handle;

/// A model spread over workers.
///
/// Made by [`BossMan::new`] or [`BossMan::builder`]. [`BossMan::distribute_model`] comes first; then
/// steps by hand ([`BossMan::forward`], [`BossMan::backward`], [`BossMan::optim_step`]) or whole
/// ([`BossMan::train_step`]).
pub struct BossMan {
    pub(crate) model: Model,
    pub(crate) plan: Plan,
    pub(crate) handle: Handle,
    pub(crate) settings: Settings,
    pub(crate) mode: Mode,
    /// The number of the last batch.
    pub(crate) batch: u64,
    /// The number of batches that went forward in training mode. Dropout depends on it.
    pub(crate) step: u64,
    /// The number of optimizer steps. The learning rate depends on it.
    pub(crate) updates: u64,
    /// The optimizer that the workers have.
    pub(crate) optimizer: Option<OptimizerSpec>,
    /// Batches that wait for their backward pass.
    pub(crate) batches_in_flight: BatchesInFlight,
    /// Accumulated gradients of steps without an update.
    pub(crate) accumulated: AccumulatedGradients,
    /// The schedule in use, and the reason for it.
    pub(crate) scheduling: ScheduleState,
    /// Whether parameters were loaded.
    pub(crate) loaded: bool,
    /// The data sets that workers read from their own files.
    pub(crate) open_data: WorkerDataSets,
    /// The last complete step.
    pub(crate) last_step: Option<LastStep>,
    /// The members of a pool, if workers may join and leave.
    pub(crate) pool: Option<Pool>,
    /// The guards that watch training.
    pub(crate) monitor: LearningMonitor,
    /// Whether to print nothing.
    pub(crate) quiet: bool,
    /// Whether the replicas that sum gradients with NCCL have their communicators.
    pub(crate) nccl_connected: bool,
    /// The host that waited for the workers, to wait again after a loss.
    pub(crate) host: Host,
    /// The builder, to build again after a loss.
    pub(crate) builder: Builder,
    /// The log from which calls by hand are repeated after a loss.
    pub(crate) replay: Option<Replay>,
    /// Keeps local workers running.
    pub(crate) local: WorkerProcesses,
}

/// Settings for how a model is cut and trained. Every setting has a default.
///
/// ```
/// use bossman::{Batch, BossMan, Cuts, Loss, Model, Optimizer, ScheduleKind};
/// use tch::{Device, Kind, Tensor};
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = Model::from_file("../examples/models/residual.yaml")?;
/// let mut boss = BossMan::builder(model)
///     .cuts(Cuts::At(vec!["4".into()]))
///     .schedule(ScheduleKind::GPipe)
///     .microbatches(4)
///     .loss(Loss::MSELoss)
///     .seed(7)
///     .build(BossMan::setup_local(2).await?)?;
/// boss.distribute_model().await?;
/// boss.send_optimizer(Optimizer::sgd_momentum(0.01, 0.9)).await?;
/// let x = Tensor::rand([30, 1], (Kind::Float, Device::Cpu)); // microbatches of 8, 8, 7 and 7
/// let report = boss.train_step(&Batch::new(&x, &x.sin())).await?;
/// assert!(report.loss.is_finite());
/// boss.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Builder {
    model: Model,
    cuts: Cuts,
    seed: u64,
    schedule: Option<ScheduleKind>,
    chunks: Option<usize>,
    settings: Settings,
}

/// The default number of stages on each worker if parameters are sharded.
const MAX_STAGES_PER_WORKER: usize = 8;

/// The default limit of batches by hand that wait for their backward pass.
const DEFAULT_IN_FLIGHT: usize = 8;

impl Builder {
    /// Sets where the model is cut. By default each worker has one stage, balanced by FLOPs.
    #[must_use]
    pub fn cuts(mut self, cuts: Cuts) -> Self {
        self.cuts = cuts;
        self
    }

    /// Sets the schedule of [`BossMan::train_step`]. By default the first call measures the layers
    /// on the workers, predicts a step for every schedule, and takes the fastest that fits the
    /// workers' memory. [`BossMan::candidates`] returns the predictions. The schedule changes the
    /// time of a step, never its result.
    #[must_use]
    pub fn schedule(mut self, schedule: impl Into<Option<ScheduleKind>>) -> Self {
        self.schedule = schedule.into();
        self
    }

    /// Sets the number of stages on each worker. The default is 2 for [`ScheduleKind::Interleaved`]
    /// and 1 for [`ScheduleKind::GPipe`]. With [`Sharding::Parameters`] it is the largest number
    /// into which the model can be cut, up to 8.
    #[must_use]
    pub fn chunks(mut self, chunks: impl Into<Option<usize>>) -> Self {
        self.chunks = chunks.into();
        self
    }

    /// Sets which activations are recomputed in the backward pass instead of stored, for layers
    /// whose model file does not set it. The default is none. Recomputing saves memory, costs time,
    /// and never changes a bit.
    #[must_use]
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.model.set_recompute(recompute);
        self
    }

    /// Sets the dtype in which linear layers, convolutions, attention and matrix products compute.
    /// The default is float32. Values between layers, parameters and gradients are always float32,
    /// so the cut does not show.
    ///
    /// With [`Precision::Fp16`], which needs CUDA, [`BossMan::train_step`] scales the loss as
    /// PyTorch's `GradScaler` does. A step whose gradients overflow changes only the scale. A
    /// program that computes the loss by hand must scale it itself.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.model.set_precision(precision);
        self.settings.loss_scale = (precision == Precision::Fp16).then(LossScale::default);
        self
    }

    /// Sets the number of [`BossMan::train_step`] calls for one optimizer step, over the mean of
    /// all their samples. The default is 1.
    #[must_use]
    pub fn accumulate(mut self, steps: u32) -> Self {
        self.settings.accumulate = steps.max(1);
        self
    }

    /// Clips gradients so that their norm over all layers is at most `max_norm`, as
    /// `torch.nn.utils.clip_grad_norm_` does. The norm is summed in the order of the model, so it
    /// does not depend on the cut.
    #[must_use]
    pub fn clip_grad_norm(mut self, max_norm: f64) -> Self {
        self.settings.max_norm = Some(max_norm);
        self
    }

    /// Sets the factor of the optimizer's learning rate in each optimizer step. The default is 1.
    #[must_use]
    pub fn lr_schedule(mut self, schedule: LrSchedule) -> Self {
        self.settings.lr_schedule = schedule;
        self
    }

    /// Sets the most batches of [`BossMan::forward_batch`] that wait for their backward pass. The
    /// default is 8.
    #[must_use]
    pub fn in_flight(mut self, batches: usize) -> Self {
        self.settings.in_flight = batches.max(1);
        self
    }

    /// Sets the number of microbatches of [`BossMan::train_step`]. The default is the number of
    /// workers, or 1 if the model's first input has a fixed batch size.
    #[must_use]
    pub fn microbatches(mut self, microbatches: u32) -> Self {
        self.settings.microbatches = microbatches;
        self
    }

    /// Sets the number of workers that get the same stages (data parallel). By default each worker
    /// has its own stages. Replicas share the microbatches of a batch according to their speed, and
    /// sum their gradients.
    ///
    /// The result does not depend on the number of replicas, one included, except with
    /// [`Builder::compress`] and [`Builder::fast_reduction`]. It differs in the last bits from the
    /// result without this setting. Without it, gradients are summed one microbatch after the
    /// other, which takes less memory and cannot be shared.
    ///
    /// ```
    /// # use bossman::{BossMan, Model, Replicas};
    /// # fn f(model: Model) {
    /// BossMan::builder(model).replicas(Replicas::Each(2)); // four workers: two stages, each on two of them
    /// # }
    /// ```
    #[must_use]
    pub fn replicas(mut self, replicas: impl Into<Option<Replicas>>) -> Self {
        self.settings.replicas = replicas.into();
        self
    }

    /// Sets whether replicas take equal numbers of microbatches, whatever their speed. The default
    /// is false. It changes the time of a step, and not its result, except with
    /// [`Builder::compress`] and [`Builder::fast_reduction`].
    #[must_use]
    pub fn assign_evenly(mut self, even: bool) -> Self {
        self.settings.even_assignment = even;
        self
    }

    /// Sets whether each replica sums the gradients of all its microbatches before it sends them.
    /// By default it keeps them apart as the tree over the microbatches requires. The setting
    /// halves the traffic of most uneven assignments. The bits of the result then depend on the
    /// number of replicas and on the assignment of microbatches. It requires [`Builder::replicas`],
    /// and has no effect with [`Builder::compress`], which does the same.
    #[must_use]
    pub fn fast_reduction(mut self, fast: bool) -> Self {
        self.settings.fast_reduction = fast;
        self
    }

    /// Sets how the gradients of replicas are summed. The default is NCCL if all replicas of a
    /// stage are on GPUs of one machine, else frames. [`Collective::Nccl`] states that the networks
    /// between the workers are trusted: NCCL neither encrypts nor authenticates its connections.
    /// With NCCL each replica first sums its own gradients, as with [`Builder::fast_reduction`]. It
    /// requires [`Builder::replicas`], and excludes [`Builder::compress`], [`Builder::shard`] and a
    /// pool.
    #[must_use]
    pub fn collective(mut self, collective: Collective) -> Self {
        self.settings.collective = collective;
        self
    }

    /// Sets the form in which replicas exchange gradients. The default is float32. Compression
    /// helps if the network is slow compared with the computers: [`Compress::Int4`] sends about a
    /// seventh of the bytes, [`Compress::Int8`] a quarter, [`Compress::Bf16`] half. The rounding
    /// error is added to the next gradients (error feedback). All replicas have the same weights to
    /// the bit, but the result depends on the number of replicas and on the assignment of
    /// microbatches. It requires [`Builder::replicas`].
    #[must_use]
    pub fn compress(mut self, compress: impl Into<Option<Compress>>) -> Self {
        self.settings.compress = compress.into();
        self
    }

    /// Sets what replicas shard, as in ZeRO ([Rajbhandari et al.
    /// 2020](https://arxiv.org/abs/1910.02054)). The default is nothing. With
    /// [`Sharding::Optimizer`] each replica of a stage holds the optimizer state of its part of the
    /// parameters, updates that part, and sends it to the others in float32, with any
    /// [`Builder::compress`]. Of Adam's 8 bytes per parameter, 4 stay with two replicas and 2 with
    /// four. With [`Sharding::Gradients`] a replica also holds only the gradients of its part.
    /// Gradients then travel uncompressed with every microbatch. With [`Sharding::Parameters`] a
    /// replica also holds only its part of the parameters, and gathers the other parts of a stage
    /// while microbatches pass through it. The default schedule is then [`ScheduleKind::GPipe`]
    /// with several stages on each worker ([`Builder::chunks`]), so that only one stage is gathered
    /// at a time. The result is the same to the bit. It requires [`Builder::replicas`], and
    /// excludes a pool.
    #[must_use]
    pub fn shard(mut self, sharding: impl Into<Option<Sharding>>) -> Self {
        self.settings.sharding = sharding.into();
        self
    }

    /// Sets what is watched in training, and the reaction if training fails silently; see
    /// [`Guards`] for the defaults. Warnings go to standard error.
    #[must_use]
    pub fn guards(mut self, guards: Guards) -> Self {
        self.settings.guards = guards;
        self
    }

    /// Sets the loss of [`BossMan::train_step`], computed on the worker that has the model's first
    /// output.
    #[must_use]
    pub fn loss(mut self, loss: LossSpec) -> Self {
        self.settings.loss = Some(loss);
        self
    }

    /// Sets the seed of parameters and dropout. The default is 0. The same seed gives the same
    /// weights for every cut.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The builder with the choices made since, to build again.
    pub(crate) fn with_current(&self, model: Model, settings: Settings) -> Self {
        Builder { model, settings, ..self.clone() }
    }

    /// Marks a run from a run file, which recovers from lost workers itself.
    pub(crate) fn for_run_file(mut self) -> Self {
        self.settings.is_called_by_program = false;
        self
    }

    /// Checks that the model can be cut as asked for `workers` workers, before waiting for them.
    ///
    /// # Errors
    /// As for [`Builder::build`].
    pub fn check(&self, workers: usize) -> Result<(), BossManError> {
        self.plan(workers).map(drop)
    }

    fn plan(&self, workers: usize) -> Result<Plan, BossManError> {
        self.check_sharding()?;
        let mut error: Option<PlanError> = None;
        for worker_groups in self.settings.worker_groups(workers)? {
            let mut of_these = None;
            for placement in self.placements(worker_groups.len()) {
                match Plan::new(self.model.graph(), &self.cuts, worker_groups.clone(), placement) {
                    Ok(plan) => return Ok(plan.sharded(self.settings.sharding)),
                    // The last one asks for the fewest stages.
                    Err(e) => of_these = Some(e),
                }
            }
            error = error.or(of_these);
        }
        Err(error.map_or_else(|| BossManError::Usage("a run without workers".into()), BossManError::from))
    }

    /// The requested schedule, or the one that the other settings imply.
    fn requested_schedule(&self) -> Option<ScheduleKind> {
        let gathers = self.settings.sharding.is_some_and(Sharding::shards_parameters);
        self.schedule.or(gathers.then_some(ScheduleKind::GPipe))
    }

    /// Refuses settings that exclude sharded parameters.
    fn check_sharding(&self) -> Result<(), BossManError> {
        let Some(sharding) = self.settings.sharding.filter(|sharding| sharding.shards_parameters()) else {
            return Ok(());
        };
        if self.settings.replicas == Some(Replicas::Auto) {
            return Err(BossManError::Usage(format!(
                "shard({sharding}): who has which stage is not chosen with it; give `replicas` a number"
            )));
        }
        match self.schedule {
            Some(kind) if !kind.takes_stages_in_order() => Err(BossManError::Usage(format!(
                "shard({sharding}) does not go with schedule {kind}: replicas must take their stages in the same order, \
                 whoever has how many microbatches; take gpipe"
            ))),
            _ => Ok(()),
        }
    }

    /// The possible placements of stages on `places` places, the best first.
    fn placements(&self, places: usize) -> Vec<Placement> {
        let (kind, small) =
            (self.requested_schedule().unwrap_or_default(), |n: usize| u16::try_from(n).unwrap_or(u16::MAX));
        let gathers = self.settings.sharding.is_some_and(Sharding::shards_parameters);
        if kind != ScheduleKind::GPipe || !gathers || self.chunks.is_some() {
            return vec![Placement::of(kind, self.chunks.map(small))];
        }
        // Of a worker with one stage all parameters are gathered at once.
        let most = match &self.cuts {
            Cuts::At(names) => (names.len() + 1) / places.max(1),
            Cuts::Auto => MAX_STAGES_PER_WORKER,
        };
        (1..=small(most).max(1)).rev().map(|chunks| Placement::of(kind, Some(chunks))).collect()
    }

    /// Cuts the model for these workers.
    ///
    /// # Errors
    /// The model cannot be cut as asked. The error states the reason.
    pub fn build(self, workers: Workers) -> Result<BossMan, BossManError> {
        if let Some(max_norm) = self.settings.max_norm.filter(|norm| norm.is_nan() || *norm < 0.0) {
            return Err(BossManError::Usage(format!("clip_grad_norm({max_norm}): expected a number of at least 0")));
        }
        if let (Some(compress), None) = (self.settings.compress, &self.settings.replicas) {
            return Err(BossManError::Usage(format!(
                "compress({compress}): without replicas no gradients are exchanged; set `replicas`"
            )));
        }
        if let (Some(sharding), None) = (self.settings.sharding, &self.settings.replicas) {
            return Err(BossManError::Usage(format!(
                "shard({sharding}): without replicas there is nobody to share with; set `replicas`"
            )));
        }
        let adds_up_first = self.settings.fast_reduction || self.settings.compress.is_some();
        if let Some(sharding) = self.settings.sharding.filter(|sharding| adds_up_first && sharding.shards_gradients()) {
            return Err(BossManError::Usage(format!(
                "shard({sharding}) goes neither with compress nor with fast_reduction, for which a replica adds up its \
                 gradients before any leave; take shard(optimizer)"
            )));
        }
        if self.settings.fast_reduction && self.settings.replicas.is_none() {
            return Err(BossManError::Usage(
                "fast_reduction: without replicas no gradients are exchanged; set `replicas`".into(),
            ));
        }
        collective::check_settings(&self.settings)?;
        let requested = self.requested_schedule();
        let Workers { listener, local, runtime, count, quiet, host } = workers;
        let plan = self.plan(count)?;
        let builder = self.clone();
        let Builder { model, cuts, seed, mut settings, .. } = self;
        if settings.loss_scale.is_some() || settings.guards.nonfinite == NonFinite::Skip {
            // Whether gradients overflowed is seen by their norm.
            settings.max_norm.get_or_insert(f64::INFINITY);
        }
        if settings.microbatches == 0 {
            // If no dimension counts samples, no batch can be cut.
            let cuttable = model.graph().batch().is_some();
            settings.microbatches = if cuttable { u32::try_from(count).unwrap_or(u32::MAX) } else { 1 };
        }
        let _inside = runtime.enter();
        let notice = move |text: String| {
            if !quiet {
                output::warn(&text);
            }
        };
        let handle = runtime::start(listener, plan.clone(), settings.bucket_bytes(), seed, settings.in_flight, notice)?;
        let local = local.map(|local| local.report_exits(handle.clone())).unwrap_or_default();
        let mut boss = BossMan {
            model,
            plan,
            handle,
            mode: Mode::Train,
            batch: 0,
            step: 0,
            updates: 0,
            optimizer: None,
            batches_in_flight: BatchesInFlight::default(),
            accumulated: AccumulatedGradients::default(),
            scheduling: ScheduleState::new(requested, cuts),
            loaded: false,
            open_data: WorkerDataSets::default(),
            last_step: None,
            pool: None,
            monitor: LearningMonitor::new(settings.guards),
            settings,
            quiet,
            nccl_connected: false,
            host,
            builder,
            replay: None,
            local,
        };
        boss.choose_collective()?;
        Ok(boss)
    }
}

impl BossMan {
    /// The model on these workers with default settings; see [`Builder`].
    ///
    /// # Errors
    /// The model has fewer layers than there are workers.
    pub fn new(workers: Workers, model: Model) -> Result<Self, BossManError> {
        Self::builder(model).build(workers)
    }

    /// Starts with the settings.
    pub fn builder(model: Model) -> Builder {
        let settings = Settings {
            microbatches: 0,
            loss: None,
            accumulate: 1,
            max_norm: None,
            loss_scale: None,
            lr_schedule: LrSchedule::default(),
            in_flight: DEFAULT_IN_FLIGHT,
            replicas: None,
            even_assignment: false,
            fast_reduction: false,
            compress: None,
            collective: Collective::default(),
            uses_nccl: false,
            sharding: None,
            guards: Guards::default(),
            is_called_by_program: true,
        };
        Builder { model, cuts: Cuts::Auto, seed: 0, schedule: None, chunks: None, settings }
    }

    /// Sends every worker its stage, with parameters initialised from the seed, and connects
    /// workers that exchange tensors.
    pub async fn distribute_model(&mut self) -> Result<(), BossManError> {
        self.batches_in_flight = BatchesInFlight::default();
        self.accumulated.clear();
        self.invalidate_replay();
        self.send_files().await?;
        self.open_data.reset_opened();
        self.nccl_connected = false;
        self.call(Request::Distribute).await.map(drop)
    }

    /// Sends every worker the files that layers are built from.
    async fn send_files(&self) -> Result<(), BossManError> {
        let files = self.file_payloads().into_iter();
        let files: Vec<_> = files.map(|(hash, payload)| (hash, self.handle.slots.insert(payload))).collect();
        match files.is_empty() {
            true => Ok(()),
            false => self.call(Request::SendFiles(files)).await.map(drop),
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

    /// Sets the optimizer on every worker, with fresh state.
    ///
    /// # Errors
    /// PyTorch would refuse a setting, for example a negative learning rate.
    pub async fn send_optimizer(&mut self, optimizer: OptimizerSpec) -> Result<(), BossManError> {
        self.refuse_in_pool("send_optimizer")?;
        optimizer.check().map_err(BossManError::Usage)?;
        self.settings.lr_schedule.check().map_err(BossManError::Usage)?;
        self.invalidate_replay();
        self.call(Request::SetOptimizer(optimizer)).await?;
        self.optimizer = Some(optimizer);
        Ok(())
    }

    /// Newcomers of a pool copy the state of others, so state set here would not reach all of them.
    pub(crate) fn refuse_in_pool(&self, call: &str) -> Result<(), BossManError> {
        match self.pool {
            Some(_) => Err(BossManError::Usage(format!("{call}: call it before open_pool()"))),
            None => Ok(()),
        }
    }

    /// Switches layers to training mode: dropout drops, batch norm updates its statistics.
    pub fn train(&mut self) {
        self.mode = Mode::Train;
    }

    /// Switches layers to evaluation mode. [`BossMan::forward`] then stores nothing for backward.
    pub fn eval(&mut self) {
        self.mode = Mode::Eval;
    }

    /// Sets the loss of [`BossMan::train_step`].
    pub fn set_loss(&mut self, loss: LossSpec) {
        self.settings.loss = Some(loss);
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The cuts and the placement of stages on workers.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Ends the run on all workers.
    pub async fn shutdown(self) {
        self.handle.stop().await;
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Answer, BossManError> {
        Ok(self.handle.call(request).await?)
    }
}
