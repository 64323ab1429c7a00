//! Steps by hand: forward, backward and the optimizer step as separate calls, with one batch or
//! several at a time.

use crate::data::batch_inputs::Inputs;
use crate::data::tensor_payload::{from_payload, to_payload};
use crate::recovery::replay::TrainingCall;
use crate::session::batches_in_flight::BatchId;
use crate::session::boss::BossMan;
use crate::session::train_step::StepHealth;
use crate::BossManError;
use crate::Variables;
use layerspec::ValueId;
use link::Payload;
use pipeline::boss::Request;
use pipeline::effect::Answer;
use pipeline::ids::Slot;
use pipeline::message::Mode;
use pipeline::schedule::{Action, Ending};
use std::future::Future;
use tch::Tensor;
use tensor::TensorError;

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
        let payloads = self.payloads(x, &variables);
        async move {
            let done = self.with_recovery(TrainingCall::Forward { payloads: payloads?, implicit_batch: true }).await?;
            Ok(done.outputs)
        }
    }

    /// As [`BossMan::forward_all`], and keeps earlier batches. Each has a number by which
    /// [`BossMan::backward_batch`] finds it, in any order. In evaluation mode nothing is stored.
    ///
    /// # Errors
    /// More batches wait for their backward pass than [`crate::Builder::in_flight`] allows (8 by
    /// default, because workers store the activations of each), an input does not fit the model, or
    /// a worker failed.
    pub fn forward_batch<'a>(
        &'a mut self,
        x: &Tensor,
        variables: Variables,
    ) -> impl Future<Output = Result<(BatchId, Vec<Tensor>), BossManError>> + Send + 'a {
        let payloads = self.payloads(x, &variables);
        async move {
            let done = self.with_recovery(TrainingCall::Forward { payloads: payloads?, implicit_batch: false }).await?;
            Ok((BatchId(self.batch), done.outputs))
        }
    }

    /// Runs the gradient of the model's first output backward through all stages. Parameter
    /// gradients accumulate until [`BossMan::optim_step`].
    ///
    /// # Errors
    /// No forward in training mode came before, or the shape is not the output's.
    pub fn backward<'a>(&'a mut self, grad: &Tensor) -> impl Future<Output = Result<(), BossManError>> + Send + 'a {
        self.backward_all(std::slice::from_ref(grad))
    }

    /// As [`BossMan::backward`], with a gradient for each of the model's outputs, in their order. A
    /// missing or undefined one counts as zero.
    pub fn backward_all<'a>(
        &'a mut self,
        grads: &[Tensor],
    ) -> impl Future<Output = Result<(), BossManError>> + Send + 'a {
        let grads = self.output_grads(grads);
        async move { self.with_recovery(TrainingCall::Backward { batch: None, grads: grads? }).await.map(drop) }
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
        let grads = self.output_grads(grads);
        async move { self.with_recovery(TrainingCall::Backward { batch: Some(batch.0), grads: grads? }).await.map(drop) }
    }

    /// Frees what the workers store of a batch that gets no backward pass.
    ///
    /// # Errors
    /// A worker failed.
    pub async fn discard_batch(&mut self, batch: BatchId) -> Result<(), BossManError> {
        self.with_recovery(TrainingCall::Discard { batch: batch.0 }).await.map(drop)
    }

    /// Applies the gradients accumulated since the last step on every worker, and clears them. This
    /// includes gradients of steps that [`crate::Builder::accumulate`] has not applied yet.
    ///
    /// # Errors
    /// No optimizer was sent, a worker failed, or gradients are not finite ([`crate::Guards`]).
    pub async fn optim_step(&mut self) -> Result<(), BossManError> {
        self.with_recovery(TrainingCall::OptimStep).await.map(drop)
    }

    pub(crate) async fn forward_once(
        &mut self,
        payloads: Vec<(u32, ValueId, Payload)>,
        implicit_batch: bool,
    ) -> Result<Vec<Tensor>, BossManError> {
        if implicit_batch && self.mode == Mode::Train {
            self.discard_implicit_batch().await?;
            self.batches_in_flight.implicit_batch = Some(self.batch + 1);
        }
        self.send_forward(payloads).await
    }

    pub(crate) async fn backward_once(
        &mut self,
        batch: Option<u64>,
        grads: Vec<Option<Payload>>,
    ) -> Result<(), BossManError> {
        let batch = batch.or(self.batches_in_flight.implicit_batch).ok_or_else(|| {
            BossManError::Usage("backward without a forward in training mode; call forward() first".into())
        })?;
        self.send_backward(batch, grads).await
    }

    pub(crate) async fn update_once(&mut self) -> Result<(), BossManError> {
        let before = self.accumulated;
        let scale = if before.steps == 0 { 1.0 } else { before.divisor / before.counted };
        let update = self.next_update(scale)?;
        // A new number, so that late tensors of a failed batch are dropped wherever they arrive.
        self.batch += 1;
        let mut run = self.single_microbatch_round(|_| None);
        run.mode = Mode::Train;
        let clipped = self.settings.max_norm.is_some();
        run.actions = self.plan.layout().ending(if clipped { Ending::ClippedStep } else { Ending::Step });
        run.update = Some(update);
        self.accumulated.clear();
        self.updates += 1;
        run.watch = self.monitor.checks_of_step(Some(self.updates), true);
        let answer = match self.run_round(run).await {
            Ok(answer) => answer,
            Err(error) => {
                self.updates -= 1;
                if error.was_refused() {
                    self.accumulated = before;
                }
                return Err(error);
            }
        };
        let skipped = match self.settings.loss_scale {
            // The program that computes the loss scales it.
            Some(_) => answer.grad_norm.is_some_and(|norm| !norm.is_finite()),
            None => self.adapt_loss_scale(answer.grad_norm)?,
        };
        self.updates -= u64::from(skipped && self.settings.loss_scale.is_some());
        let lr = Some(update.lr).filter(|_| !skipped);
        self.check_learning(&StepHealth { loss: None, lr, health: answer.health })
    }

    /// Frees what the workers store of the batch of [`BossMan::forward`], if it gets no backward
    /// pass.
    pub(crate) async fn discard_implicit_batch(&mut self) -> Result<(), BossManError> {
        match self.batches_in_flight.implicit_batch {
            Some(batch) => self.discard(batch).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn discard(&mut self, batch: u64) -> Result<(), BossManError> {
        self.batches_in_flight.remove(batch);
        self.call(Request::Discard { batch }).await.map(drop)
    }

    pub(crate) fn payloads(
        &self,
        x: &Tensor,
        variables: &Variables,
    ) -> Result<Vec<(u32, ValueId, Payload)>, BossManError> {
        let inputs = Inputs::check(self.model.graph(), x, variables)?;
        inputs.payloads(&inputs.microbatches(1)?)
    }

    /// A payload for each output of the model. `None` for an output without a gradient.
    fn output_grads(&self, grads: &[Tensor]) -> Result<Vec<Option<Payload>>, BossManError> {
        let payloads = grads.iter().map(|grad| grad.defined().then(|| to_payload(grad)).transpose());
        let mut payloads: Vec<Option<Payload>> = payloads.collect::<Result<_, _>>()?;
        let outputs = self.model.graph().outputs().len();
        if payloads.len() > outputs {
            return Err(BossManError::Usage(format!("{} gradients for {outputs} outputs", payloads.len())));
        }
        if payloads.iter().all(Option::is_none) {
            let message =
                "backward needs the gradient of the output: call loss.backward() first, then prediction.grad()";
            return Err(BossManError::Usage(message.into()));
        }
        payloads.resize_with(outputs, || None);
        Ok(payloads)
    }

    async fn send_forward(&mut self, payloads: Vec<(u32, ValueId, Payload)>) -> Result<Vec<Tensor>, BossManError> {
        let training = self.mode == Mode::Train;
        let limit = self.settings.in_flight;
        if training && self.batches_in_flight.batches.len() >= limit {
            self.batches_in_flight.implicit_batch = None;
            return Err(BossManError::Usage(format!(
                "{limit} batches wait for their backward pass and workers keep the activations of each: call \
                 backward_batch() or discard_batch() for one, or allow more with Builder::in_flight"
            )));
        }
        self.batch += 1;
        let mut run = self.single_microbatch_round(|stage| Some(Action::Forward { stage, microbatch: 0 }));
        run.outputs = true;
        run.inputs = self.insert_slots(payloads);
        if training {
            self.step += 1;
            // Recorded before the wait: if this future is dropped, the workers must discard the
            // batch.
            self.batches_in_flight.batches.insert(self.batch);
        }
        run.step = self.step;
        let answer = self.run_round(self.with_parameter_gathers(run)?).await?;
        self.outputs(answer.outputs, training)
    }

    async fn send_backward(&mut self, batch: u64, payloads: Vec<Option<Payload>>) -> Result<(), BossManError> {
        if !self.batches_in_flight.remove(batch) {
            return Err(BossManError::Usage(
                "this batch waits for no backward pass: it had one, was forgotten, or went forward in evaluation mode"
                    .into(),
            ));
        }
        let mut run = self.single_microbatch_round(|stage| Some(Action::Backward { stage, microbatch: 0 }));
        run.mode = Mode::Train;
        run.batch = batch;
        // A worker's later stages come first.
        run.actions.iter_mut().for_each(|actions| actions.reverse());
        let mut run = self.with_parameter_gathers(run)?;
        let sums = self.plan.layout().reduction(self.settings.reduction());
        run.actions.iter_mut().zip(sums).for_each(|(actions, sums)| actions.extend(sums));
        let grads =
            self.model.graph().outputs().iter().zip(payloads).map(|(value, payload)| {
                (0, *value, payload.into_iter().map(|p| self.handle.slots.insert(p)).collect())
            });
        run.grads = Some(grads.collect());
        // Counted before the wait: if this future is dropped, the workers continue.
        let before = std::mem::replace(&mut self.accumulated.has_manual_backward, true);
        let done = self.run_round(run).await;
        if done.as_ref().is_err_and(BossManError::was_refused) {
            self.accumulated.has_manual_backward = before;
        }
        done.map(drop)
    }

    /// Runs a round. If training fails, all gradients and all waiting batches are void.
    pub(crate) async fn run_round(&mut self, mut run: pipeline::boss::RunRequest) -> Result<Answer, BossManError> {
        let (batch, training) = (run.batch, run.mode == Mode::Train);
        let result = match self.connect_nccl(&mut run).await {
            Ok(()) => {
                // Dropping this future fails the training round, so its batches are void.
                let nccl_connected = self.nccl_connected;
                self.nccl_connected &= !training;
                let result = self.call(Request::Run(Box::new(run))).await;
                self.nccl_connected = nccl_connected;
                result
            }
            Err(error) => {
                self.free_slots(run);
                if training && !error.was_refused() {
                    self.call(Request::Discard { batch }).await.ok();
                }
                Err(error)
            }
        };
        if training && result.as_ref().is_err_and(|error| !error.was_refused()) {
            self.accumulated.clear();
            self.nccl_connected = false;
            for other in std::mem::take(&mut self.batches_in_flight).batches.into_iter().filter(|other| *other != batch)
            {
                // The first error reports a lost worker.
                self.call(Request::Discard { batch: other }).await.ok();
            }
        }
        result
    }

    /// The model's outputs of one microbatch, in their order.
    pub(crate) fn outputs(
        &self,
        outputs: Vec<(u32, ValueId, Slot)>,
        training: bool,
    ) -> Result<Vec<Tensor>, BossManError> {
        let mut tensors = Vec::new();
        for (_, value, slot) in outputs {
            let payload = self.handle.slots.remove(slot);
            let payload = payload.ok_or_else(|| BossManError::Usage(format!("{slot} is empty; please report it")))?;
            let tensor = from_payload(&payload)?;
            // Received memory may be shared with the network layer; the user may write to theirs.
            let tensor = tensor.f_detach_copy().map_err(TensorError::from)?;
            let tensor = match training && tensor.is_floating_point() {
                true => tensor.f_set_requires_grad(true).map_err(TensorError::from)?,
                false => tensor,
            };
            tensors.push((value, tensor));
        }
        let place = |value: &ValueId| self.model.graph().outputs().iter().position(|o| o == value);
        tensors.sort_by_key(|(value, _)| place(value));
        Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
    }
}
