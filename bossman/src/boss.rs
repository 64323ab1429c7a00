//! The boss: a model spread over workers, as an object.

use crate::collective;
use crate::gathered::Gathered;
use crate::guards::{Guards, NonFinite, Watching};
use crate::host::{Host, Workers};
use crate::local::Processes;
use crate::open_data::OpenData;
use crate::output;
use crate::pool::Pool;
use crate::replay::Replay;
use crate::scheduling::{LastStep, Scheduling};
use crate::settings::Settings;
use crate::under_way::UnderWay;
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
    /// How many batches went forward in training mode; dropout depends on it.
    pub(crate) step: u64,
    /// How many optimizer steps were done; the learning rate depends on it.
    pub(crate) updates: u64,
    /// The optimizer that the workers have.
    pub(crate) optimizer: Option<OptimizerSpec>,
    /// Batches whose backward pass has not come.
    pub(crate) under_way: UnderWay,
    /// Gradients of steps without an update.
    pub(crate) gathered: Gathered,
    /// Which schedule runs, and why.
    pub(crate) scheduling: Scheduling,
    /// Parameters were loaded.
    pub(crate) loaded: bool,
    /// What workers read by themselves.
    pub(crate) open_data: OpenData,
    /// The last whole step.
    pub(crate) last: Option<LastStep>,
    /// Who comes and goes, where workers may.
    pub(crate) pool: Option<Pool>,
    /// Whether training is alive.
    pub(crate) watching: Watching,
    /// Nothing is printed.
    pub(crate) quiet: bool,
    /// Replicas that sum gradients with NCCL have found each other.
    pub(crate) communicators: bool,
    /// What waited for the workers, and would again.
    pub(crate) host: Host,
    /// What this was built by.
    pub(crate) origin: Builder,
    /// From what calls by hand are done again.
    pub(crate) replay: Option<Replay>,
    /// Keeps local workers running.
    pub(crate) local: Processes,
}

/// How a model is cut and trained; every setting has a default.
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

/// Stages on each worker whose parameters are gathered one after the other, where nothing else is asked for.
const MOST_GATHERED: usize = 8;

/// Batches by hand that may wait for their backward pass, where nothing else is asked for.
const IN_FLIGHT: usize = 8;

impl Builder {
    /// Where the model is cut; by default one stage a worker, balanced by FLOPs.
    #[must_use]
    pub fn cuts(mut self, cuts: Cuts) -> Self {
        self.cuts = cuts;
        self
    }

    /// The order of work in [`BossMan::train_step`]. By default the first call measures the layers on the workers,
    /// predicts a step for every schedule, and takes the fastest that fits the workers' memory; [`BossMan::candidates`]
    /// tells what was predicted. The schedule changes how long a step takes, never its result.
    #[must_use]
    pub fn schedule(mut self, schedule: impl Into<Option<ScheduleKind>>) -> Self {
        self.schedule = schedule.into();
        self
    }

    /// Stages on each worker for [`ScheduleKind::Interleaved`], by default 2, and for [`ScheduleKind::GPipe`], by default 1;
    /// with [`Sharding::Parameters`] by default as many as the model can be cut into, up to 8.
    #[must_use]
    pub fn chunks(mut self, chunks: impl Into<Option<usize>>) -> Self {
        self.chunks = chunks.into();
        self
    }

    /// Which activations are computed again in the backward pass rather than kept, for layers whose model file does not
    /// say; by default none. It saves memory, costs time, and never changes a bit.
    #[must_use]
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.model.set_recompute(recompute);
        self
    }

    /// In which type linear layers, convolutions, attention and matrix products compute; by default float32. Values
    /// between layers, parameters and gradients are float32 in each case, so the cut does not show.
    ///
    /// With [`Precision::Fp16`], which needs CUDA, [`BossMan::train_step`] scales the loss as PyTorch's `GradScaler`
    /// does, and a step whose gradients overflow changes nothing but the scale. Whoever computes the loss by hand scales
    /// it by hand.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.model.set_precision(precision);
        self.settings.loss_scale = (precision == Precision::Fp16).then(LossScale::default);
        self
    }

    /// The optimizer step comes with every `steps`-th [`BossMan::train_step`] only, over the mean of all samples since
    /// the last one; by default 1.
    #[must_use]
    pub fn accumulate(mut self, steps: u32) -> Self {
        self.settings.accumulate = steps.max(1);
        self
    }

    /// Gradients are shortened so that their norm over all layers is at most `max_norm`, as
    /// `torch.nn.utils.clip_grad_norm_` does. The norm is summed in the order of the model, so that it does not depend on
    /// the cut.
    #[must_use]
    pub fn clip_grad_norm(mut self, max_norm: f64) -> Self {
        self.settings.max_norm = Some(max_norm);
        self
    }

    /// By what the optimizer's learning rate is multiplied in each optimizer step; by default 1.
    #[must_use]
    pub fn lr_schedule(mut self, schedule: LrSchedule) -> Self {
        self.settings.lr_schedule = schedule;
        self
    }

    /// How many batches of [`BossMan::forward_batch`] may wait for their backward pass; by default 8.
    #[must_use]
    pub fn in_flight(mut self, batches: usize) -> Self {
        self.settings.in_flight = batches.max(1);
        self
    }

    /// Into how many microbatches [`BossMan::train_step`] cuts a batch; by default as many as there are
    /// workers, or 1 where the model's first input has a number, and no word, as its batch size.
    #[must_use]
    pub fn microbatches(mut self, microbatches: u32) -> Self {
        self.settings.microbatches = microbatches;
        self
    }

    /// How many workers get the same stages (data parallel); by default each has its own. Replicas share a batch's
    /// microbatches, by their speed, and sum their gradients.
    ///
    /// The result does not depend on how many replicas there are, one included (but for [`Builder::compress`] and
    /// [`Builder::fast_reduction`]). It differs in the last bits from that
    /// without this setting: gradients are then summed one microbatch after the other, which takes less memory and cannot
    /// be shared.
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

    /// Whether replicas take as many microbatches each rather than by their speed; by default not. It changes how long a
    /// step takes, and not its result (but for [`Builder::compress`] and [`Builder::fast_reduction`]).
    #[must_use]
    pub fn assign_evenly(mut self, even: bool) -> Self {
        self.settings.even = even;
        self
    }

    /// Whether each replica adds up the gradients of all its microbatches before it sends, rather than keep them apart where
    /// the tree over a batch's microbatches wants that; by default not. It halves what most uneven assignments of microbatches send, and the result
    /// is no longer the same to the bit for any number of replicas, nor whoever takes which microbatch. It goes with
    /// [`Builder::replicas`], and changes nothing where [`Builder::compress`] does the same.
    #[must_use]
    pub fn fast_reduction(mut self, fast: bool) -> Self {
        self.settings.fast = fast;
        self
    }

    /// By what the gradients of replicas are summed; by default NCCL where all replicas of a stage are on GPUs of one machine, else
    /// frames. [`Collective::Nccl`] says that the networks between the workers are trusted: NCCL neither encrypts nor
    /// authenticates its connections. With NCCL each replica adds its own gradients up first, as with
    /// [`Builder::fast_reduction`]. It goes with [`Builder::replicas`], and neither with [`Builder::compress`],
    /// [`Builder::shard`] nor a pool.
    #[must_use]
    pub fn collective(mut self, collective: Collective) -> Self {
        self.settings.collective = collective;
        self
    }

    /// In what form replicas exchange gradients; by default float32. It is for networks that are slow beside the computers:
    /// [`Compress::Int4`] sends about a seventh of the bytes, [`Compress::Int8`] a quarter, [`Compress::Bf16`] half. What rounding loses is added to what
    /// is sent next, and all replicas have the same weights to the bit; but the result is no longer the same for any
    /// number of replicas, nor whoever takes which microbatch. It goes with [`Builder::replicas`].
    #[must_use]
    pub fn compress(mut self, compress: impl Into<Option<Compress>>) -> Self {
        self.settings.compress = compress.into();
        self
    }

    /// What replicas share out rather than each keep, as in ZeRO ([Rajbhandari et al.
    /// 2020](https://arxiv.org/abs/1910.02054)); by default nothing. With [`Sharding::Optimizer`] each replica of a stage
    /// keeps the optimizer's state of its part of the parameters, updates that, and gives it to the others (in float32,
    /// whatever [`Builder::compress`] says): of Adam's 8 bytes a parameter 4 stay with two replicas, 2 with four. With
    /// [`Sharding::Gradients`] no replica keeps the gradients of the other parts either; these then travel with every
    /// microbatch, and not compressed. With [`Sharding::Parameters`] a replica keeps its part of the parameters alone, too, and
    /// has the others' of a stage while it takes microbatches through it; so that a stage is not all that a worker has, the
    /// schedule is then [`ScheduleKind::GPipe`] with several stages a worker ([`Builder::chunks`]), unless another is asked
    /// for. The result is the same to the bit. It goes with [`Builder::replicas`], and not in a
    /// pool.
    #[must_use]
    pub fn shard(mut self, sharding: impl Into<Option<Sharding>>) -> Self {
        self.settings.sharding = sharding.into();
        self
    }

    /// What is watched in training, and what is done where it only looks alive; see [`Guards`] for what is by default.
    /// Warnings go to standard error.
    #[must_use]
    pub fn guards(mut self, guards: Guards) -> Self {
        self.settings.guards = guards;
        self
    }

    /// The loss of [`BossMan::train_step`], computed on the worker that has the model's first output.
    #[must_use]
    pub fn loss(mut self, loss: LossSpec) -> Self {
        self.settings.loss = Some(loss);
        self
    }

    /// What parameters and dropout are drawn from; by default 0. The same seed gives the same weights,
    /// however the model is cut.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The same with what was settled since.
    pub(crate) fn settled(&self, model: Model, settings: Settings) -> Self {
        Builder { model, settings, ..self.clone() }
    }

    /// A run file says what is to be done, where workers are lost, too.
    pub(crate) fn of_run_file(mut self) -> Self {
        self.settings.by_hand = false;
        self
    }

    /// Whether the model can be cut as asked for that many workers; to be known before waiting for them.
    ///
    /// # Errors
    /// As for [`Builder::build`].
    pub fn check(&self, workers: usize) -> Result<(), BossManError> {
        self.plan(workers).map(drop)
    }

    fn plan(&self, workers: usize) -> Result<Plan, BossManError> {
        self.check_gathering()?;
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

    /// The schedule that is asked for, or goes with what is.
    fn asked(&self) -> Option<ScheduleKind> {
        let gathers = self.settings.sharding.is_some_and(Sharding::gathers_first);
        self.schedule.or(gathers.then_some(ScheduleKind::GPipe))
    }

    /// Refuses what does not go with parameters that are gathered.
    fn check_gathering(&self) -> Result<(), BossManError> {
        let Some(sharding) = self.settings.sharding.filter(|sharding| sharding.gathers_first()) else { return Ok(()) };
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

    /// How stages may be placed on so many places, the best first.
    fn placements(&self, places: usize) -> Vec<Placement> {
        let (kind, small) = (self.asked().unwrap_or_default(), |n: usize| u16::try_from(n).unwrap_or(u16::MAX));
        let gathers = self.settings.sharding.is_some_and(Sharding::gathers_first);
        if kind != ScheduleKind::GPipe || !gathers || self.chunks.is_some() {
            return vec![Placement::of(kind, self.chunks.map(small))];
        }
        // Of a worker with one stage all parameters are gathered at once.
        let most = match &self.cuts {
            Cuts::At(names) => (names.len() + 1) / places.max(1),
            Cuts::Auto => MOST_GATHERED,
        };
        (1..=small(most).max(1)).rev().map(|chunks| Placement::of(kind, Some(chunks))).collect()
    }

    /// Cuts the model for these workers.
    ///
    /// # Errors
    /// It cannot be cut as asked; the error says why.
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
        let adds_up_first = self.settings.fast || self.settings.compress.is_some();
        if let Some(sharding) = self.settings.sharding.filter(|sharding| adds_up_first && sharding.scatters()) {
            return Err(BossManError::Usage(format!(
                "shard({sharding}) goes neither with compress nor with fast_reduction, for which a replica adds up its \
                 gradients before any leave; take shard(optimizer)"
            )));
        }
        if self.settings.fast && self.settings.replicas.is_none() {
            return Err(BossManError::Usage(
                "fast_reduction: without replicas no gradients are exchanged; set `replicas`".into(),
            ));
        }
        collective::check(&self.settings)?;
        let asked = self.asked();
        let Workers { listener, local, runtime, count, quiet, host } = workers;
        let plan = self.plan(count)?;
        let origin = self.clone();
        let Builder { model, cuts, seed, mut settings, .. } = self;
        if settings.loss_scale.is_some() || settings.guards.nonfinite == NonFinite::Skip {
            // Whether gradients overflowed is seen by their norm.
            settings.max_norm.get_or_insert(f64::INFINITY);
        }
        if settings.microbatches == 0 {
            // Where nothing says which dimension counts samples, nothing can be cut.
            let cuttable = model.graph().batch().is_some();
            settings.microbatches = if cuttable { u32::try_from(count).unwrap_or(u32::MAX) } else { 1 };
        }
        let _inside = runtime.enter();
        let notice = move |text: String| {
            if !quiet {
                output::warn(&text);
            }
        };
        let handle = runtime::start(listener, plan.clone(), settings.buckets(), seed, settings.in_flight, notice)?;
        let local = local.map(|local| local.watch(handle.clone())).unwrap_or_default();
        let mut boss = BossMan {
            model,
            plan,
            handle,
            mode: Mode::Train,
            batch: 0,
            step: 0,
            updates: 0,
            optimizer: None,
            under_way: UnderWay::default(),
            gathered: Gathered::default(),
            scheduling: Scheduling::new(asked, cuts),
            loaded: false,
            open_data: OpenData::default(),
            last: None,
            pool: None,
            watching: Watching::new(settings.guards),
            settings,
            quiet,
            communicators: false,
            host,
            origin,
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

    /// Settings first.
    pub fn builder(model: Model) -> Builder {
        let settings = Settings {
            microbatches: 0,
            loss: None,
            accumulate: 1,
            max_norm: None,
            loss_scale: None,
            lr_schedule: LrSchedule::default(),
            in_flight: IN_FLIGHT,
            replicas: None,
            even: false,
            fast: false,
            compress: None,
            collective: Collective::default(),
            nccl: false,
            sharding: None,
            guards: Guards::default(),
            by_hand: true,
        };
        Builder { model, cuts: Cuts::Auto, seed: 0, schedule: None, chunks: None, settings }
    }

    /// Gives every worker its stage, with parameters initialised from the seed, and connects workers
    /// that exchange tensors.
    pub async fn distribute_model(&mut self) -> Result<(), BossManError> {
        self.under_way = UnderWay::default();
        self.gathered.clear();
        self.lose_track();
        self.send_files().await?;
        self.open_data.forget_told();
        self.communicators = false;
        self.call(Request::Distribute).await.map(drop)
    }

    /// Sends every worker the files that layers are made from.
    async fn send_files(&self) -> Result<(), BossManError> {
        let files = self.file_payloads().into_iter();
        let files: Vec<_> = files.map(|(hash, payload)| (hash, self.handle.slots.insert(payload))).collect();
        match files.is_empty() {
            true => Ok(()),
            false => self.call(Request::SendFiles(files)).await.map(drop),
        }
    }

    /// The files that layers are made from, by their SHA-256.
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
    /// A setting that PyTorch would refuse, as a negative learning rate.
    pub async fn send_optimizer(&mut self, optimizer: OptimizerSpec) -> Result<(), BossManError> {
        self.refuse_in_pool("send_optimizer")?;
        optimizer.check().map_err(BossManError::Usage)?;
        self.settings.lr_schedule.check().map_err(BossManError::Usage)?;
        self.lose_track();
        self.call(Request::SetOptimizer(optimizer)).await?;
        self.optimizer = Some(optimizer);
        Ok(())
    }

    /// Newcomers of a pool take the state of others: what is set beside that would not reach all of them.
    pub(crate) fn refuse_in_pool(&self, call: &str) -> Result<(), BossManError> {
        match self.pool {
            Some(_) => Err(BossManError::Usage(format!("{call}: call it before open_pool()"))),
            None => Ok(()),
        }
    }

    /// From now on layers behave as in training: dropout drops, batch norm learns.
    pub fn train(&mut self) {
        self.mode = Mode::Train;
    }

    /// From now on layers behave as in use, and [`BossMan::forward`] keeps nothing for backward.
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

    /// Where it is cut and which worker has what.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Ends the run: workers are told and end.
    pub async fn shutdown(self) {
        self.handle.stop().await;
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Answer, BossManError> {
        Ok(self.handle.call(request).await?)
    }
}
