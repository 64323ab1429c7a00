//! The rounds of steps by hand: what the workers run for a forward pass, a backward pass or an
//! optimizer step.

use super::learning_monitor::StepHealth;
use super::trainer::Trainer;
use crate::data::batch_inputs::Inputs;
use crate::{BossManError, Variables};
use layerspec::ValueId;
use link::Payload;
use pipeline::message::Mode;
use pipeline::round_outputs::RoundOutputs;
use pipeline::schedule::Action;
use tch::Tensor;

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

    pub(super) async fn forward(
        &mut self,
        payloads: Vec<(u32, ValueId, Payload)>,
    ) -> Result<Vec<Tensor>, BossManError> {
        let mode = self.position.mode;
        let limit = self.settings.in_flight;
        if mode == Mode::Train && self.position.in_flight.batches.len() >= limit {
            return Err(BossManError::Usage(format!(
                "{limit} batches wait for their backward pass and workers keep the activations of \
                 each: call backward_batch() or discard_batch() for one, or allow more with \
                 Builder::in_flight"
            )));
        }
        let (batch, before) = (self.position.next_batch(), self.position.counters.step);
        let mut run =
            self.single_microbatch_round(|stage| Some(Action::Forward { stage, microbatch: 0 }));
        run.outputs = RoundOutputs::All;
        run.inputs = self.insert_slots(payloads);
        if mode == Mode::Train {
            self.position.counters.step += 1;
            // Recorded before the wait: if this future is dropped, the workers must discard the
            // batch.
            self.position.in_flight.batches.insert(batch);
            self.position.in_flight.unclaimed = Some(batch);
        }
        run.step = self.position.counters.step;
        let answer = match self.run_round(self.with_parameter_gathers(run)?).await {
            Ok(answer) => answer,
            Err(error) => {
                self.position.counters.step = before;
                if error.was_refused() {
                    self.position.in_flight.remove(batch);
                }
                return Err(error);
            }
        };
        let outputs = self.outputs(answer.outputs, mode)?;
        self.position.in_flight.unclaimed = None;
        Ok(outputs)
    }

    pub(super) async fn backward(
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

    pub(super) async fn optim_step(&mut self) -> Result<(), BossManError> {
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
