//! The boss: a model spread over workers, as an object.

use crate::host::Workers;
use crate::{BossManError, Model};
use link::Handle;
use pipeline::boss::Request;
use pipeline::effect::Answer;
use pipeline::message::Mode;
use pipeline::{Cuts, LossSpec, OptimizerSpec, Plan, ScheduleKind};
use tokio::process::ChildStdin;

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
    /// The number of the training step at work, from 1.
    pub(crate) step: u64,
    /// A training-mode forward whose backward has not come.
    pub(crate) outstanding: Option<u64>,
    /// Keeps local workers running.
    _local: Vec<ChildStdin>,
}

pub(crate) struct Settings {
    pub(crate) schedule: ScheduleKind,
    pub(crate) microbatches: u32,
    pub(crate) loss: Option<LossSpec>,
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
pub struct Builder {
    model: Model,
    cuts: Cuts,
    seed: u64,
    settings: Settings,
}

impl Builder {
    /// Where the model is cut; by default one stage a worker, balanced by FLOPs.
    #[must_use]
    pub fn cuts(mut self, cuts: Cuts) -> Self {
        self.cuts = cuts;
        self
    }

    /// The order of work in [`BossMan::train_step`]; by default 1F1B.
    #[must_use]
    pub fn schedule(mut self, schedule: ScheduleKind) -> Self {
        self.settings.schedule = schedule;
        self
    }

    /// Into how many microbatches [`BossMan::train_step`] cuts a batch; by default as many as there are
    /// workers.
    #[must_use]
    pub fn microbatches(mut self, microbatches: u32) -> Self {
        self.settings.microbatches = microbatches;
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

    /// Whether the model can be cut as asked for that many workers; to be known before waiting for them.
    ///
    /// # Errors
    /// As for [`Builder::build`].
    pub fn check(&self, workers: usize) -> Result<(), BossManError> {
        Ok(Plan::new(self.model.graph(), &self.cuts, workers).map(drop)?)
    }

    /// Cuts the model for these workers.
    ///
    /// # Errors
    /// It cannot be cut as asked; the error says why.
    pub fn build(self, workers: Workers) -> Result<BossMan, BossManError> {
        let Builder { model, cuts, seed, mut settings } = self;
        let Workers { lobby, local, runtime, count, quiet } = workers;
        let plan = Plan::new(model.graph(), &cuts, count)?;
        if settings.microbatches == 0 {
            settings.microbatches = u32::try_from(count).unwrap_or(u32::MAX);
        }
        let _inside = runtime.enter();
        let notice = move |text: String| {
            if !quiet {
                eprintln!("{text}");
            }
        };
        let handle = lobby.start(plan.clone(), seed, notice)?;
        let local = local.map(|local| local.watch(handle.clone())).unwrap_or_default();
        Ok(BossMan {
            model,
            plan,
            handle,
            settings,
            mode: Mode::Train,
            batch: 0,
            step: 0,
            outstanding: None,
            _local: local,
        })
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
        let settings = Settings { schedule: ScheduleKind::default(), microbatches: 0, loss: None };
        Builder { model, cuts: Cuts::Auto, seed: 0, settings }
    }

    /// Gives every worker its stage, with parameters initialised from the seed, and connects workers
    /// that exchange tensors.
    pub async fn distribute_model(&mut self) -> Result<(), BossManError> {
        self.outstanding = None;
        self.call(Request::Distribute).await.map(drop)
    }

    /// Sets the optimizer on every worker, with fresh state.
    ///
    /// # Errors
    /// A setting that PyTorch would refuse, as a negative learning rate.
    pub async fn send_optimizer(&mut self, optimizer: OptimizerSpec) -> Result<(), BossManError> {
        optimizer.check().map_err(BossManError::Usage)?;
        self.call(Request::SetOptimizer(optimizer)).await.map(drop)
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
