//! The settings of a run, and the start of its session.

use crate::session::trainer::Trainer;
use crate::settings::conflicts;
use crate::settings::guards::Guards;
use crate::settings::user_settings::Settings;
use crate::tuning::collective;
use crate::tuning::known_times::KnownTimes;
use crate::tuning::replica_devices::{self, device_kind};
use crate::tuning::worker_memory;
use crate::workers::host::Workers;
#[cfg(doc)]
use crate::BossMan;
use crate::{BossManError, Model};
use layerspec::{Precision, Recompute};
use link::WorkerInfo;
use pipeline::ids::WorkerId;
use pipeline::lr_schedule::LrSchedule;
use pipeline::replicas::{Collective, Compress, Replicas, Sharding};
use pipeline::room::CutMemory;
use pipeline::{Cuts, Determinism, Initialization, LossSpec, Plan, ScheduleKind};

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
    settings: Settings,
    /// The times of layers that sessions of this builder measured.
    known_times: KnownTimes,
}

impl Builder {
    /// Sets the cuts of the model. By default each worker has one stage, balanced by FLOPs.
    #[must_use]
    pub fn cuts(mut self, cuts: Cuts) -> Self {
        self.settings.parallel.cuts = cuts;
        self
    }

    /// Sets the schedule of [`BossMan::train_step`]. By default the first call measures the layers
    /// on the workers, predicts a step for every schedule, and takes the fastest that fits the
    /// workers' memory. [`BossMan::candidates`] returns the predictions. The schedule changes the
    /// time of a step, never its result.
    #[must_use]
    pub fn schedule(mut self, schedule: impl Into<Option<ScheduleKind>>) -> Self {
        self.settings.parallel.schedule = schedule.into();
        self
    }

    /// Sets the number of stages on each worker. The default is 2 for [`ScheduleKind::Interleaved`]
    /// and 1 for [`ScheduleKind::GPipe`]. With [`Sharding::Parameters`] it is the largest number
    /// into which the model can be cut, up to 8.
    #[must_use]
    pub fn chunks(mut self, chunks: impl Into<Option<usize>>) -> Self {
        self.settings.parallel.chunks = chunks.into();
        self
    }

    /// Sets which activations are recomputed in the backward pass instead of stored, for layers
    /// whose model file does not set it. By default none are recomputed. Recomputing saves memory,
    /// costs time, and never changes a bit.
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
    /// program that computes the loss itself must also scale it.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.model.set_precision(precision);
        self.settings.scales_loss = precision == Precision::Fp16;
        self
    }

    /// Sets whether results on GPUs are equal to the bit from run to run. By default they are: GPUs
    /// use deterministic kernels only, without TF32, and a layer that has none is an error. So are
    /// replicas of a stage on unlike devices. With [`Determinism::Fast`] GPUs use their fastest
    /// kernels, with TF32, and results differ in the last bits. On CPUs it changes nothing.
    #[must_use]
    pub fn determinism(mut self, determinism: Determinism) -> Self {
        self.settings.determinism = determinism;
        self
    }

    /// Sets when workers draw the random initial values of parameters.
    pub(crate) fn initialization(mut self, initialization: Initialization) -> Self {
        self.settings.initialization = initialization;
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
        self.settings.microbatches = Some(microbatches).filter(|count| *count > 0);
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
    /// // Four workers: two stages, each on two of them.
    /// BossMan::builder(model).replicas(Replicas::Each(2));
    /// # }
    /// ```
    #[must_use]
    pub fn replicas(mut self, replicas: impl Into<Option<Replicas>>) -> Self {
        self.settings.parallel.replicas = replicas.into();
        self
    }

    /// Gives replicas equal numbers of microbatches. By default a faster replica takes more. This
    /// changes the time of a step, and not its result, except with [`Builder::compress`] and
    /// [`Builder::fast_reduction`].
    #[must_use]
    pub fn assign_evenly(mut self) -> Self {
        self.settings.parallel.even_assignment = true;
        self
    }

    /// Lets each replica sum the gradients of all its microbatches before it sends them.
    /// By default it keeps them apart as the tree over the microbatches requires. The setting
    /// halves the traffic of most uneven assignments. The bits of the result then depend on the
    /// number of replicas and on the assignment of microbatches. It requires [`Builder::replicas`],
    /// and has no effect with [`Builder::compress`], which does the same.
    #[must_use]
    pub fn fast_reduction(mut self) -> Self {
        self.settings.parallel.fast_reduction = true;
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
        self.settings.parallel.collective = collective;
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
        self.settings.parallel.compress = compress.into();
        self
    }

    /// Sets the state that replicas shard, as in ZeRO ([Rajbhandari et al.
    /// 2020](https://arxiv.org/abs/1910.02054)). By default they shard nothing. With
    /// [`Sharding::Optimizer`] each replica of a stage holds the optimizer state of its part of the
    /// parameters. It updates that part and sends it to the others in float32, also with
    /// [`Builder::compress`]. Adam has 8 bytes of state per parameter. A replica holds 4 of them if
    /// there are two replicas, and 2 if there are four. With [`Sharding::Gradients`] a replica also
    /// holds only the gradients of its part. Gradients then travel uncompressed with every
    /// microbatch. With [`Sharding::Parameters`] a replica also holds only its part of the
    /// parameters, and gathers the other parts of a stage while microbatches pass through it. The
    /// default schedule is then [`ScheduleKind::GPipe`] with several stages on each worker
    /// ([`Builder::chunks`]), so that only one stage is gathered at a time. The result is the same
    /// to the bit. It requires [`Builder::replicas`], and excludes a pool.
    #[must_use]
    pub fn shard(mut self, sharding: impl Into<Option<Sharding>>) -> Self {
        self.settings.parallel.sharding = sharding.into();
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
        self.settings.seed = seed;
        self
    }

    /// Plans with less memory, after workers of the run were out of it this many times.
    pub(crate) fn shortages(mut self, shortages: u32) -> Self {
        self.settings.parallel.shortages = shortages;
        self
    }

    /// Takes the times of layers that sessions of another builder measured, and adds its own.
    pub(crate) fn known_times(mut self, known_times: KnownTimes) -> Self {
        self.known_times = known_times;
        self
    }

    /// Marks a run from a run file, which recovers from lost workers itself.
    pub(crate) fn for_run_file(mut self) -> Self {
        self.settings.is_called_by_program = false;
        self
    }

    pub(super) fn new(model: Model) -> Self {
        Builder { model, settings: Settings::default(), known_times: KnownTimes::default() }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Checks that the model can be cut as asked for `workers` workers, before waiting for them.
    ///
    /// # Errors
    /// As for [`Builder::build`].
    pub fn check(&self, workers: usize) -> Result<(), BossManError> {
        self.plan(workers).map(drop)
    }

    /// The cut for `workers` workers.
    ///
    /// # Errors
    /// As for [`Builder::build`].
    pub(crate) fn plan(&self, workers: usize) -> Result<Plan, BossManError> {
        if let Some(max_norm) = self.settings.max_norm.filter(|norm| norm.is_nan() || *norm <= 0.0)
        {
            return Err(BossManError::Usage(format!(
                "clip_grad_norm({max_norm}): expected a number above 0"
            )));
        }
        conflicts::check(&self.settings.facts())?;
        self.settings.parallel.plan(self.model.graph(), workers, &CutMemory::default())
    }

    /// The cut for these workers and their memory.
    ///
    /// # Errors
    /// As for [`Builder::build`].
    pub(crate) fn plan_on(&self, workers: &[WorkerInfo]) -> Result<Plan, BossManError> {
        let infos: Vec<_> = workers.iter().collect();
        let parallel = &self.settings.parallel;
        let memory = worker_memory::for_cuts(&infos, parallel.shortages);
        parallel.plan(self.model.graph(), workers.len(), &memory)
    }

    /// Checks that a session can start on these workers, before any worker leaves another session
    /// for it. In that session they may have other numbers.
    ///
    /// # Errors
    /// As for [`Builder::build`].
    pub(crate) fn check_on(&self, workers: &[WorkerInfo]) -> Result<(), BossManError> {
        self.check(workers.len())?;
        let plan = self.plan_on(workers)?;
        let own: Vec<_> = workers.iter().map(|info| info.memory_bytes).collect();
        plan.check_memory(&own)?;
        let device_of = |worker: WorkerId| workers.get(usize::from(worker.0)).map(device_kind);
        if let Some(unlike) = replica_devices::unlike(plan.stage_placement.iter(), device_of) {
            unlike.judge(self.settings.determinism)?;
        }
        collective::decide(&self.settings.parallel, &plan, workers).map(drop)
    }

    /// Starts a session, also after a loss of workers.
    pub(super) fn start(&self, workers: Workers) -> Result<Trainer, BossManError> {
        let mut trainer = Trainer::start(self.model.clone(), self.settings.clone(), workers)?;
        trainer.schedules.known_times = self.known_times.clone();
        Ok(trainer)
    }
}
