//! Steps by separate calls: forward, backward and the optimizer step, with one batch or several at
//! a time.

use super::call::{LoggedCall, PayloadCopier, TrainingCall};
use super::learning_monitor::StepHealth;
use super::trainer::Trainer;
use crate::data::batch_inputs::Inputs;
use crate::data::tensor_payload::to_payload;
use crate::{BossManError, Variables};
use layerspec::ValueId;
use link::Payload;
use pipeline::message::Mode;
use pipeline::schedule::Action;
use tch::Tensor;

/// One batch forward.
pub(crate) struct Forward {
    pub(crate) inputs: Vec<(u32, ValueId, Payload)>,
    pub(crate) name: BatchName,
}

/// Whether the caller names a batch.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum BatchName {
    /// The batch of [`crate::BossMan::forward`]. The next one replaces it.
    Implicit,
    /// A batch of [`crate::BossMan::forward_batch`].
    Explicit,
}

/// A batch backward. `batch: None` is the implicit one.
pub(crate) struct Backward {
    pub(crate) batch: Option<u64>,
    pub(crate) grads: Vec<Option<Payload>>,
}

/// A batch that gets no backward pass.
#[derive(Clone)]
pub(crate) struct DiscardBatch {
    pub(crate) batch: u64,
}

/// An optimizer step over the accumulated gradients.
#[derive(Clone)]
pub(crate) struct OptimStep;

impl Forward {
    pub(crate) fn prepare(
        trainer: &Trainer,
        x: &Tensor,
        variables: &Variables,
        name: BatchName,
    ) -> Result<Self, BossManError> {
        Ok(Forward { inputs: trainer.payloads(x, variables)?, name })
    }
}

impl TrainingCall for Forward {
    type Answer = Vec<Tensor>;

    async fn run(&self, trainer: &mut Trainer) -> Result<Vec<Tensor>, BossManError> {
        if self.name == BatchName::Implicit && trainer.position.mode == Mode::Train {
            trainer.discard_implicit_batch().await?;
            trainer.position.in_flight.implicit_batch = Some(trainer.position.batch + 1);
        }
        trainer.forward(self.inputs.clone()).await
    }

    fn logged(&self) -> LoggedCall {
        let mut copier = PayloadCopier::default();
        let inputs = self.inputs.iter();
        let inputs =
            inputs.map(|(index, value, payload)| (*index, *value, copier.copy(payload))).collect();
        let call = Box::new(Forward { inputs, name: self.name });
        LoggedCall { call, bytes: copier.bytes }
    }

    fn changes_state(&self, mode: Mode) -> bool {
        mode == Mode::Train
    }
}

impl Backward {
    /// Takes a gradient for each output of the model. A missing or undefined one counts as zero.
    pub(crate) fn prepare(
        trainer: &Trainer,
        batch: Option<u64>,
        grads: &[Tensor],
    ) -> Result<Self, BossManError> {
        let payloads =
            grads.iter().map(|grad| grad.defined().then(|| to_payload(grad)).transpose());
        let mut payloads: Vec<Option<Payload>> = payloads.collect::<Result<_, _>>()?;
        let outputs = trainer.model.graph().outputs().len();
        if payloads.len() > outputs {
            return Err(BossManError::Usage(format!(
                "{} gradients for {outputs} outputs",
                payloads.len()
            )));
        }
        if payloads.iter().all(Option::is_none) {
            let message = "backward needs the gradient of the output: call loss.backward() first, \
                           then prediction.grad()";
            return Err(BossManError::Usage(message.into()));
        }
        payloads.resize_with(outputs, || None);
        Ok(Backward { batch, grads: payloads })
    }
}

impl TrainingCall for Backward {
    type Answer = ();

    async fn run(&self, trainer: &mut Trainer) -> Result<(), BossManError> {
        let batch = self.batch.or(trainer.position.in_flight.implicit_batch).ok_or_else(|| {
            BossManError::Usage(
                "backward without a forward in training mode; call forward() first".into(),
            )
        })?;
        trainer.backward(batch, self.grads.clone()).await
    }

    fn logged(&self) -> LoggedCall {
        let mut copier = PayloadCopier::default();
        let grads = self.grads.iter().map(|grad| grad.as_ref().map(|grad| copier.copy(grad)));
        let call = Box::new(Backward { batch: self.batch, grads: grads.collect() });
        LoggedCall { call, bytes: copier.bytes }
    }
}

impl TrainingCall for DiscardBatch {
    type Answer = ();

    async fn run(&self, trainer: &mut Trainer) -> Result<(), BossManError> {
        trainer.discard(self.batch).await
    }

    fn logged(&self) -> LoggedCall {
        LoggedCall { call: Box::new(self.clone()), bytes: 0 }
    }
}

impl TrainingCall for OptimStep {
    type Answer = ();

    async fn run(&self, trainer: &mut Trainer) -> Result<(), BossManError> {
        trainer.optim_step().await
    }

    fn logged(&self) -> LoggedCall {
        LoggedCall { call: Box::new(self.clone()), bytes: 0 }
    }
}

impl Trainer {
    /// The payloads of a batch in one microbatch.
    pub(crate) fn payloads(
        &self,
        x: &Tensor,
        variables: &Variables,
    ) -> Result<Vec<(u32, ValueId, Payload)>, BossManError> {
        let inputs = Inputs::check(self.model.graph(), x, variables)?;
        inputs.payloads(&inputs.microbatches(1)?)
    }

    async fn forward(
        &mut self,
        payloads: Vec<(u32, ValueId, Payload)>,
    ) -> Result<Vec<Tensor>, BossManError> {
        let mode = self.position.mode;
        let limit = self.settings.in_flight;
        if mode == Mode::Train && self.position.in_flight.batches.len() >= limit {
            self.position.in_flight.implicit_batch = None;
            return Err(BossManError::Usage(format!(
                "{limit} batches wait for their backward pass and workers keep the activations of \
                 each: call backward_batch() or discard_batch() for one, or allow more with \
                 Builder::in_flight"
            )));
        }
        let batch = self.position.next_batch();
        let mut run =
            self.single_microbatch_round(|stage| Some(Action::Forward { stage, microbatch: 0 }));
        run.outputs = true;
        run.inputs = self.insert_slots(payloads);
        if mode == Mode::Train {
            self.position.counters.step += 1;
            // Recorded before the wait: if this future is dropped, the workers must discard the
            // batch.
            self.position.in_flight.batches.insert(batch);
        }
        run.step = self.position.counters.step;
        let answer = self.run_round(self.with_parameter_gathers(run)?).await?;
        self.outputs(answer.outputs, mode)
    }

    async fn backward(
        &mut self,
        batch: u64,
        payloads: Vec<Option<Payload>>,
    ) -> Result<(), BossManError> {
        if !self.position.in_flight.remove(batch) {
            return Err(BossManError::Usage(
                "this batch waits for no backward pass: it had one, was forgotten, or went \
                 forward in evaluation mode"
                    .into(),
            ));
        }
        let mut run =
            self.single_microbatch_round(|stage| Some(Action::Backward { stage, microbatch: 0 }));
        run.mode = Mode::Train;
        run.batch = batch;
        // A worker's later stages come first.
        run.actions.iter_mut().for_each(|actions| actions.reverse());
        let mut run = self.with_parameter_gathers(run)?;
        let sums = self.plan.layout().reduction(self.reduction());
        run.actions.iter_mut().zip(sums).for_each(|(actions, sums)| actions.extend(sums));
        let grads = self.model.graph().outputs().iter().zip(payloads).map(|(value, payload)| {
            (0, *value, payload.into_iter().map(|p| self.handle.slots.insert(p)).collect())
        });
        run.grads = Some(grads.collect());
        // Counted before the wait: if this future is dropped, the workers continue.
        let accumulated = &mut self.position.accumulated;
        let before = std::mem::replace(&mut accumulated.has_manual_backward, true);
        let done = self.run_round(run).await;
        if done.as_ref().is_err_and(BossManError::was_refused) {
            self.position.accumulated.has_manual_backward = before;
        }
        done.map(drop)
    }

    async fn optim_step(&mut self) -> Result<(), BossManError> {
        let before = self.position.accumulated;
        let update = self.next_update(before.gradient_scale())?;
        // A new number, so that late tensors of a failed batch are dropped wherever they arrive.
        self.position.next_batch();
        let mut run = self.single_microbatch_round(|_| None);
        run.mode = Mode::Train;
        run.actions = self.plan.layout().ending(self.strategy.update_ending());
        run.update = Some(update);
        // Counted before the wait: if this future is dropped, the workers continue.
        self.position.accumulated = Default::default();
        self.position.counters.updates += 1;
        run.watch = self.monitor.checks_of_step(Some(self.position.counters.updates), true);
        let answer = match self.run_round(run).await {
            Ok(answer) => answer,
            Err(error) => {
                self.position.counters.updates -= 1;
                if error.was_refused() {
                    self.position.accumulated = before;
                }
                return Err(error);
            }
        };
        let skipped = match self.position.counters.loss_scale {
            // The program that computes the loss scales it.
            Some(_) => answer.grad_norm.is_some_and(|norm| !norm.is_finite()),
            None => self.adapt_loss_scale(answer.grad_norm)?,
        };
        let is_scaled = self.position.counters.loss_scale.is_some();
        self.position.counters.updates -= u64::from(skipped && is_scaled);
        let lr = Some(update.lr).filter(|_| !skipped);
        self.check_learning(&StepHealth { loss: None, lr, layers: answer.health })
    }
}
