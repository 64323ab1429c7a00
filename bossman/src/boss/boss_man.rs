//! The boss: a model on its workers, as an object. Every call goes to the trainer or to the
//! recovery around it.

use super::builder::Builder;
use crate::data::Dataset;
use crate::pool::Pool;
use crate::recovery::call_log::CallLog;
use crate::session::replica_check::compare_replicas;
use crate::session::trainer::Trainer;
use crate::workers::host::{Host, Workers};
use crate::{Batch, BossManError, Candidates, Model, Timelines};
use pipeline::message::Mode;
use pipeline::{LossSpec, OptimizerSpec, Plan, ScheduleKind};
use std::future::Future;

/// A model on its workers.
///
/// [`BossMan::new`] or [`BossMan::builder`] makes it. Call [`BossMan::distribute_model`] first.
/// Then train in whole steps ([`BossMan::train_step`]) or by separate calls ([`BossMan::forward`],
/// [`BossMan::backward`], [`BossMan::optim_step`]).
pub struct BossMan {
    /// The session with the workers. A loss of workers replaces it.
    pub(crate) trainer: Trainer,
    /// The builder, to build again after a loss.
    pub(crate) builder: Builder,
    /// The host that waited for the workers, to wait again after a loss.
    pub(crate) host: Host,
    /// The members of a pool, if workers may join and leave.
    pub(crate) pool: Option<Pool>,
    /// The state and the log from which calls are repeated after a loss.
    pub(crate) log: Option<CallLog>,
}

impl BossMan {
    /// Listens on `MODEL_PORT` (default 1024) and waits for `workers` workers. Prints the line to
    /// paste on their machines.
    ///
    /// # Errors
    /// The port is in use, or the boss's key cannot be read or made.
    pub async fn setup_host(workers: usize) -> Result<Workers, BossManError> {
        Host::new(workers).wait().await
    }

    /// Starts `workers` worker processes on this machine and waits for them. They always end with
    /// this process.
    ///
    /// # Errors
    /// The worker program is not found, or ends before it joined.
    pub async fn setup_local(workers: usize) -> Result<Workers, BossManError> {
        Host::new(workers).local(workers).wait().await
    }

    /// Sends every worker its stage, with parameters initialised from the seed, and connects
    /// workers that exchange tensors. Called again, it begins from nothing: counters are 0, and the
    /// optimizer must be sent again.
    pub async fn distribute_model(&mut self) -> Result<(), BossManError> {
        self.invalidate_log();
        self.trainer.distribute().await
    }

    /// Sets the optimizer on every worker, with fresh state.
    ///
    /// # Errors
    /// PyTorch would refuse a setting, for example a negative learning rate.
    pub async fn send_optimizer(&mut self, optimizer: OptimizerSpec) -> Result<(), BossManError> {
        self.trainer.refuse_in_pool("send_optimizer")?;
        optimizer.check().map_err(BossManError::Usage)?;
        self.trainer.settings.lr_schedule.check().map_err(BossManError::Usage)?;
        self.invalidate_log();
        self.trainer.send_optimizer(optimizer).await
    }

    /// Has the workers that take samples open a data set among their own files
    /// ([`Dataset::for_workers`]). A batch of a data set that is not open yet opens it, too. With
    /// this call, errors come before training.
    ///
    /// # Errors
    /// A worker was started without `--data`, or its files are missing or differ from those here.
    pub async fn open_data(&mut self, data: &Dataset) -> Result<(), BossManError> {
        let spec = data.spec(self.trainer.model.graph()).ok_or_else(|| {
            BossManError::Usage(
                "open_data: workers read no data but that of Dataset::for_workers".into(),
            )
        })?;
        self.trainer.open_data(spec).await
    }

    /// Lets workers join and leave from now on (`bossman serve`). The model must be distributed,
    /// and the loss, the optimizer and [`Builder::replicas`] must be set.
    ///
    /// # Errors
    /// The run has no replicas, or has state that would be lost with a worker that leaves.
    pub async fn open_pool(&mut self) -> Result<(), BossManError> {
        if self.log.is_some() {
            let message = "a pool mends itself: leave enable_recovery() out";
            return Err(BossManError::Usage(message.into()));
        }
        self.pool = Some(Pool::open(&mut self.trainer, self.host.status()).await?);
        Ok(())
    }

    /// Switches layers to training mode: dropout drops, batch norm updates its statistics.
    pub fn train(&mut self) {
        self.trainer.position.mode = Mode::Train;
    }

    /// Switches layers to evaluation mode. [`BossMan::forward`] then stores nothing for backward.
    pub fn eval(&mut self) {
        self.trainer.position.mode = Mode::Eval;
    }

    /// Sets the loss of [`BossMan::train_step`].
    pub fn set_loss(&mut self, loss: LossSpec) {
        self.trainer.loss = Some(loss);
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.trainer.model
    }

    /// The cuts and the placement of stages on workers.
    pub fn plan(&self) -> &Plan {
        &self.trainer.plan
    }

    /// Measures the model's layers on the workers, with the sizes of this batch's microbatches, and
    /// predicts a step for every schedule. Nothing is trained.
    ///
    /// # Errors
    /// The batch does not fit the model, or a worker failed.
    pub fn candidates<'a>(
        &'a mut self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Candidates, BossManError>> + Send + 'a {
        let shape = self.trainer.batch_shape(batch);
        async move { self.trainer.candidates(&shape?).await }
    }

    /// The schedule of the next [`BossMan::train_step`]. `None` if it is not chosen yet.
    pub fn schedule(&self) -> Option<ScheduleKind> {
        self.trainer.strategy.schedule.or(self.trainer.schedules.chosen)
    }

    /// The timelines of the last [`BossMan::train_step`].
    pub fn timelines(&self) -> Option<Timelines> {
        self.trainer.schedules.timelines(&self.trainer.schedule_context())
    }

    /// Compares the trained parameters of all replicas, by their SHA-256. This also happens every
    /// 100 optimizer steps of [`BossMan::train_step`], and before [`BossMan::state_dict`], except
    /// for replicas on unlike devices ([`crate::Builder::determinism`]).
    ///
    /// # Errors
    /// Two replicas of a stage differ, because a machine computes wrongly or in another way. The
    /// error names both, and the first parameter that differs.
    pub async fn compare_replicas(&self) -> Result<(), BossManError> {
        compare_replicas(&self.trainer).await
    }

    /// Ends the run on all workers.
    pub async fn shutdown(self) {
        self.trainer.handle.stop().await;
    }
}
