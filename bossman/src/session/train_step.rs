//! A whole training step in one call.

use super::call::{LoggedCall, TrainingCall};
use super::prepared_batch::PreparedBatch;
use super::step_report::StepReport;
use super::trainer::Trainer;
use crate::tuning::batch_shape::BatchShape;
use crate::{Batch, BossManError};
use pipeline::ids::WorkerId;
use std::time::{Duration, Instant};

/// A whole training step.
pub(crate) struct TrainStep {
    batch: PreparedBatch,
    /// The time of the preparation.
    preparing: Duration,
}

/// The result of a [`TrainStep`].
pub(crate) struct TrainedStep {
    pub(crate) report: StepReport,
    /// Whether the step ended with an update.
    pub(crate) updated: bool,
    /// The workers that follow the pool, with the number of commands that each has still to run.
    pub(crate) behind: Vec<(WorkerId, usize)>,
}

impl TrainStep {
    /// Checks a batch and cuts it into microbatches.
    pub(crate) fn prepare(trainer: &mut Trainer, batch: &Batch) -> Result<Self, BossManError> {
        let started = Instant::now();
        let prepared = PreparedBatch::new(trainer, batch, trainer.strategy.microbatches)?;
        trainer.register_data_of(batch)?;
        Ok(TrainStep { batch: prepared, preparing: started.elapsed() })
    }
}

impl TrainingCall for TrainStep {
    type Answer = TrainedStep;

    async fn run(&self, trainer: &mut Trainer) -> Result<TrainedStep, BossManError> {
        trainer.discard_unclaimed_batch().await?;
        trainer.discard_implicit_batch().await?;
        let plan = trainer.choose_schedule(&self.batch.shape()).await?;
        trainer.report(plan);
        trainer.data.open(&trainer.handle).await?;
        trainer.run_step(&self.batch, self.preparing).await
    }

    fn logged(&self) -> LoggedCall {
        let (batch, bytes) = self.batch.deep_copy();
        LoggedCall { call: Box::new(TrainStep { batch, preparing: self.preparing }), bytes }
    }

    fn batch_shape(&self) -> Option<BatchShape> {
        Some(self.batch.shape())
    }

    const FOLLOWS_MEMBERS: bool = true;
}
