//! Calls that move the state of training: weights, checkpoints, and the state for recovery.

use super::boss_man::BossMan;
use crate::checkpoint::{self, StoredState, TrainingState};
use crate::recovery::call_log::CallLog;
use crate::session::weight_transfer;
use crate::weights::initial_weights::InitialWeights;
use crate::{BossManError, StateDict};
use pipeline::{StateDigest, StateForm};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

impl BossMan {
    /// Fetches parameters and buffers from all workers.
    ///
    /// ```
    /// # use bossman::{BossMan, Model, StateDict};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let model = Model::from_file("../examples/models/residual.yaml")?;
    /// # let mut boss = BossMan::new(BossMan::setup_local(2).await?, model)?;
    /// # boss.distribute_model().await?;
    /// let weights = boss.state_dict().await?;
    /// assert_eq!(weights.get("0.weight").unwrap().size(), [512, 1]);
    /// # let path = std::env::temp_dir().join(format!("doc-{}.safetensors", std::process::id()));
    /// weights.save(&path)?; // opens in PyTorch: safetensors.torch.load_file
    /// boss.load_state_dict(&StateDict::load(&path)?).await?;
    /// # std::fs::remove_file(path)?;
    /// # boss.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub async fn state_dict(&mut self) -> Result<StateDict, BossManError> {
        weight_transfer::fetch(&mut self.trainer).await
    }

    /// Writes parameters and buffers to a safetensors file while they arrive from the workers. The
    /// file is that of [`StateDict::save`], and the boss holds 64 MiB of it at most. It appears
    /// whole under its name or not at all.
    ///
    /// # Errors
    /// A worker failed, the file cannot be written, or a tensor has NaN.
    pub async fn save_state_dict(&mut self, path: impl AsRef<Path>) -> Result<(), BossManError> {
        weight_transfer::save(&mut self.trainer, path.as_ref()).await
    }

    /// Replaces parameters and buffers on all workers. A tied parameter may also stand under the
    /// names of the layers that share it, as in a PyTorch state_dict.
    ///
    /// If the future is dropped before its end, the model is not whole. It is then neither trained
    /// nor read until weights are loaded or a state is restored.
    ///
    /// # Errors
    /// Tensors are missing, unknown or misshapen; all are listed, and nothing is changed.
    pub fn load_state_dict<'a>(
        &'a mut self,
        weights: &StateDict,
    ) -> impl Future<Output = Result<(), BossManError>> + Send + 'a {
        let refused = self.trainer.refuse_in_pool("load_state_dict");
        let tensors = refused.and_then(|()| weight_transfer::by_stage(&self.trainer, weights));
        async move {
            let tensors = tensors?;
            self.invalidate_log();
            weight_transfer::load(&mut self.trainer, tensors).await?;
            weight_transfer::end_load(&self.trainer).await
        }
    }

    /// Replaces those parameters and buffers on all workers that are among these weights.
    pub(crate) async fn load_initial_weights(
        &mut self,
        weights: &InitialWeights,
    ) -> Result<(), BossManError> {
        self.trainer.refuse_in_pool("load_state_dict")?;
        self.invalidate_log();
        let trainer = &mut self.trainer;
        match weights {
            InitialWeights::InFiles(files) => weight_transfer::load_files(trainer, files).await,
            InitialWeights::OnWorkers(weights) => {
                weight_transfer::load_from_workers_files(trainer, weights).await
            }
        }
    }

    /// Copies the whole state of training. It resumes from there to the bit, with any workers: see
    /// [`BossMan::restore`].
    /// [`crate::checkpoint::Checkpoints`] writes it to a folder or an object store.
    ///
    /// A program that resumes after the loss of one of three workers:
    ///
    /// ```no_run
    /// # use bossman::{Batch, BossMan, BossManError, Host, Loss, Model, Optimizer};
    /// async fn start(workers: usize) -> Result<BossMan, BossManError> {
    ///     // Workers that have lost their boss look for it on this port.
    ///     let workers = Host::new(workers).port(1024).wait().await?;
    ///     let model = Model::from_file("model.yaml")?;
    ///     let builder = BossMan::builder(model).loss(Loss::MSELoss).microbatches(8);
    ///     let mut boss = builder.build(workers)?;
    ///     boss.distribute_model().await?;
    ///     boss.send_optimizer(Optimizer::adam(1e-3)).await?;
    ///     Ok(boss)
    /// }
    ///
    /// async fn train(batches: &[Batch]) -> Result<(), BossManError> {
    ///     let mut boss = start(3).await?;
    ///     let mut state = boss.checkpoint().await?;
    ///     while let Some(batch) = batches.get(state.counters.step as usize) {
    ///         let step = async {
    ///             boss.train_step(batch).await?;
    ///             boss.checkpoint().await
    ///         };
    ///         match step.await {
    ///             Ok(now) => state = now,
    ///             Err(error) if error.workers_were_lost() => {
    ///                 drop(boss);
    ///                 boss = start(2).await?;
    ///                 boss.restore(&state).await?;
    ///             }
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    ///     boss.shutdown().await;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// Accumulated gradients wait for an update, or a worker failed.
    pub async fn checkpoint(&mut self) -> Result<TrainingState, BossManError> {
        checkpoint::begin_snapshot(&mut self.trainer, StateForm::Slices).await?.finish().await
    }

    /// A SHA-256 of the whole training state. Each worker hashes the tensors that it has, so only
    /// the hashes travel; with sharded optimizer state its shards do, too. It equals
    /// [`TrainingState::digest`], for every cut and any number of workers and replicas.
    ///
    /// # Errors
    /// Accumulated gradients wait for an update, or a worker failed.
    pub async fn digest(&mut self) -> Result<StateDigest, BossManError> {
        checkpoint::begin_snapshot(&mut self.trainer, StateForm::Hashes).await?.digest().await
    }

    /// Replaces the state of all workers. Training continues from there to the bit. The optimizer
    /// must have been sent. A future that is dropped leaves the model as
    /// [`BossMan::load_state_dict`] does.
    ///
    /// # Errors
    /// The state is of another model or optimizer. All differences of the weights are listed.
    pub fn restore<'a>(
        &'a mut self,
        state: &TrainingState,
    ) -> impl Future<Output = Result<(), BossManError>> + Send + 'a {
        let refused = self.trainer.refuse_in_pool("restore");
        let tensors = refused.and_then(|()| checkpoint::state_by_stage(&self.trainer, state));
        let counters = state.counters;
        async move {
            let tensors = tensors?;
            self.invalidate_log();
            checkpoint::restore(&mut self.trainer, tensors, counters).await
        }
    }

    /// As [`BossMan::restore`], from a checkpoint that stays in its files until workers need it.
    pub(crate) async fn restore_stored(
        &mut self,
        state: &Arc<StoredState>,
    ) -> Result<(), BossManError> {
        self.trainer.refuse_in_pool("restore")?;
        self.invalidate_log();
        checkpoint::restore_stored(&mut self.trainer, state).await
    }

    /// Turns on recovery. When workers are lost, a call waits for the remaining ones and for
    /// spares, and is repeated with them. Results equal those of a run without losses, to the bit.
    /// This holds for [`BossMan::forward`] and [`BossMan::backward`] and their variants,
    /// [`BossMan::optim_step`] and [`BossMan::train_step`]. A call that only reads, for example
    /// [`BossMan::state_dict`], fails, and succeeds after the next of these calls. Results that
    /// depend on the placement differ in the last bits: [`crate::Builder::compress`],
    /// [`crate::Builder::fast_reduction`], NCCL.
    ///
    /// After every `every` updates the boss copies the whole training state to its own memory.
    /// Between copies it logs the arguments of calls. It copies only when no batch waits for its
    /// backward pass. Some events make it impossible to repeat calls until the next copy: 1024
    /// calls or 1 GiB of arguments, a call that failed or whose future was dropped, and new weights
    /// or a new optimizer. A loss is then an error that states so. If a future is dropped during
    /// recovery, the next call continues the recovery.
    ///
    /// ```no_run
    /// # use bossman::{Batch, BossMan, BossManError, Host, Loss, Model, Optimizer};
    /// # async fn f(model: Model, batches: Vec<Batch>) -> Result<(), BossManError> {
    /// let fleet = Host::new(3).wait().await?;
    /// let mut boss = BossMan::builder(model).loss(Loss::MSELoss).build(fleet)?;
    /// boss.distribute_model().await?;
    /// boss.send_optimizer(Optimizer::adam(1e-3)).await?;
    /// boss.enable_recovery(10).await?;
    /// for batch in &batches {
    ///     boss.train_step(batch).await?; // a worker that is lost costs seconds
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// No optimizer was sent, a batch waits for its backward pass, accumulated gradients wait for
    /// an update, or a worker failed. Also if the run is a pool, which recovers by itself.
    pub async fn enable_recovery(&mut self, every: u64) -> Result<(), BossManError> {
        self.trainer.refuse_in_pool("enable_recovery")?;
        if self.trainer.optimizer.is_none() || !self.trainer.position.in_flight.batches.is_empty() {
            let message = "enable_recovery: call it once the optimizer is sent, and while no \
                           batch waits for its backward pass";
            return Err(BossManError::Usage(message.into()));
        }
        let state = self.checkpoint().await?;
        self.log = Some(CallLog::new(every, state, self.trainer.plan.workers()));
        Ok(())
    }
}
