//! Training calls. Each prepares its arguments, and runs with recovery.

use super::boss_man::BossMan;
use crate::session::evaluation::{Evaluation, Outputs};
use crate::session::manual_step::{Backward, BatchName, DiscardBatch, Forward, OptimStep};
use crate::session::position::BatchId;
use crate::session::step_report::StepReport;
use crate::session::train_step::TrainStep;
use crate::{Batch, BossManError, Variables};
use std::future::Future;
use std::time::Instant;
use tch::Tensor;
use tracing::{debug, debug_span, Instrument};

impl BossMan {
    /// Runs a batch forward through all stages and returns the model's first output, on the CPU. In
    /// training mode the output is a leaf that requires grad, so that a loss computed on it leaves
    /// `grad()` for [`BossMan::backward`]. A second call discards the first batch.
    /// [`BossMan::forward_batch`] allows several batches at a time.
    ///
    /// `x` is the model's first input; others are in `variables`.
    ///
    /// # Errors
    /// An input does not fit the model, or a worker failed.
    pub fn forward<'a>(
        &'a mut self,
        x: &Tensor,
        variables: Variables,
    ) -> impl Future<Output = Result<Tensor, BossManError>> + Send + 'a {
        let outputs = self.forward_all(x, variables);
        async {
            let first = outputs.await?.into_iter().next();
            first.ok_or_else(|| BossManError::Usage("the model has no output".into()))
        }
    }

    /// As [`BossMan::forward`], with all outputs of the model in their order.
    pub fn forward_all<'a>(
        &'a mut self,
        x: &Tensor,
        variables: Variables,
    ) -> impl Future<Output = Result<Vec<Tensor>, BossManError>> + Send + 'a {
        let call = Forward::prepare(&self.trainer, x, &variables, BatchName::Implicit);
        async move { self.with_recovery(call?).await }
    }

    /// As [`BossMan::forward_all`], and keeps earlier batches. Each has a number by which
    /// [`BossMan::backward_batch`] finds it, in any order. In evaluation mode nothing is stored.
    ///
    /// # Errors
    /// More batches wait for their backward pass than [`crate::Builder::in_flight`] allows, an
    /// input does not fit the model, or a worker failed. The default limit is 8, because workers
    /// store the activations of each batch.
    pub fn forward_batch<'a>(
        &'a mut self,
        x: &Tensor,
        variables: Variables,
    ) -> impl Future<Output = Result<(BatchId, Vec<Tensor>), BossManError>> + Send + 'a {
        let call = Forward::prepare(&self.trainer, x, &variables, BatchName::Explicit);
        async move {
            let outputs = self.with_recovery(call?).await?;
            Ok((BatchId(self.trainer.position.batch), outputs))
        }
    }

    /// Runs the gradient of the model's first output backward through all stages. Parameter
    /// gradients accumulate until [`BossMan::optim_step`].
    ///
    /// # Errors
    /// No forward in training mode came before, or the shape is not the output's.
    pub fn backward<'a>(
        &'a mut self,
        grad: &Tensor,
    ) -> impl Future<Output = Result<(), BossManError>> + Send + 'a {
        self.backward_all(std::slice::from_ref(grad))
    }

    /// As [`BossMan::backward`], with a gradient for each of the model's outputs, in their order. A
    /// missing or undefined one counts as zero.
    pub fn backward_all<'a>(
        &'a mut self,
        grads: &[Tensor],
    ) -> impl Future<Output = Result<(), BossManError>> + Send + 'a {
        let call = Backward::prepare(&self.trainer, None, grads);
        async move { self.with_recovery(call?).await }
    }

    /// As [`BossMan::backward_all`], for a batch of [`BossMan::forward_batch`].
    ///
    /// Gradients are summed in the order of these calls.
    ///
    /// # Errors
    /// The batch is unknown: it went backward, was discarded, or went forward in evaluation mode.
    pub fn backward_batch<'a>(
        &'a mut self,
        batch: BatchId,
        grads: &[Tensor],
    ) -> impl Future<Output = Result<(), BossManError>> + Send + 'a {
        let call = Backward::prepare(&self.trainer, Some(batch.0), grads);
        async move { self.with_recovery(call?).await }
    }

    /// Frees what the workers store of a batch that gets no backward pass.
    ///
    /// # Errors
    /// A worker failed.
    pub async fn discard_batch(&mut self, batch: BatchId) -> Result<(), BossManError> {
        self.with_recovery(DiscardBatch { batch: batch.0 }).await
    }

    /// Applies the gradients accumulated since the last step on every worker, and clears them. This
    /// includes gradients of steps that [`crate::Builder::accumulate`] has not applied yet.
    ///
    /// # Errors
    /// No optimizer was sent, a worker failed, or gradients are not finite ([`crate::Guards`]).
    pub async fn optim_step(&mut self) -> Result<(), BossManError> {
        self.with_recovery(OptimStep).await
    }

    /// Runs a whole training step: cuts the batch into microbatches, runs forward and backward in
    /// the order of the schedule, computes the loss on the last stage's worker, and updates the
    /// parameters.
    ///
    /// The loss is the mean over the batch for every cut into microbatches: each microbatch is
    /// weighted by its samples, or by its targets that are not ignored. With
    /// [`crate::Builder::accumulate`] every n-th call runs the optimizer step, over the mean of the
    /// gradients of all samples since the last.
    ///
    /// The first call measures the layers on the workers if the schedule is chosen automatically
    /// (see [`crate::Builder::schedule`]).
    ///
    /// If the future is dropped before its end, the workers may complete the step, and nobody
    /// learns its loss or error. To go on from a known state then, call [`BossMan::restore`].
    ///
    /// If all targets are ignored, the step changes nothing, and its loss is NaN. A warning tells
    /// of the first such step.
    ///
    /// # Errors
    /// No loss was set, a tensor does not fit the model, or a worker failed. The step is then void
    /// on every worker. Also if the loss is not finite ([`crate::Guards`]). The error then names
    /// the layer at fault.
    pub fn train_step<'a>(
        &'a mut self,
        batch: &Batch,
    ) -> impl Future<Output = Result<StepReport, BossManError>> + Send + 'a {
        let started = Instant::now();
        let span = debug_span!("step", step = self.trainer.position.counters.step + 1);
        let call = TrainStep::prepare(&mut self.trainer, batch);
        let step = async move {
            let step = self.with_recovery(call?).await?;
            self.after_step(&step).await?;
            let report = StepReport { time: started.elapsed(), ..step.report };
            debug!(loss = report.loss, lr = report.lr, time = ?report.time, "step done");
            Ok(report)
        };
        step.instrument(span)
    }

    /// Runs a batch through all stages in evaluation mode, in one microbatch. The worker of the
    /// last layer computes the loss.
    ///
    /// # Errors
    /// No loss was set, a tensor does not fit the model, or a worker failed.
    pub fn evaluate<'a>(
        &'a mut self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Evaluation, BossManError>> + Send + 'a {
        let evaluations =
            self.trainer.evaluate_batches(std::slice::from_ref(batch), Outputs::Fetch);
        async move {
            let only = evaluations.await?.pop();
            only.ok_or_else(|| {
                BossManError::Usage("no batch was evaluated; please report it".into())
            })
        }
    }
}
