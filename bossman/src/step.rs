//! Steps: by hand, and whole.

use crate::batch::{Batch, Variables};
use crate::boss::BossMan;
use crate::inputs::Inputs;
use crate::payload::{from_payload, to_payload};
use crate::BossManError;
use layerspec::ValueId;
use link::Payload;
use pipeline::boss::{Request, RunRequest};
use pipeline::effect::Answer;
use pipeline::ids::Slot;
use pipeline::message::{Mode, RoundLoss};
use pipeline::plan::StageSpec;
use pipeline::schedule::Action;
use std::future::Future;
use std::time::{Duration, Instant};
use tch::Tensor;
use tensor::TensorError;

/// What a training step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Which training step, from 1.
    pub step: u64,
    /// The mean loss over the batch, before the update.
    pub loss: f32,
    /// Samples in the batch.
    pub samples: u64,
    /// From call to answer.
    pub time: Duration,
}

impl BossMan {
    /// The batch through all stages; gives the model's first output, on the CPU. In training mode it is
    /// a leaf that requires grad, so that a loss computed on it leaves `grad()` for
    /// [`BossMan::backward`], and a second call forgets the first.
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
        let payloads = Inputs::check(self.model.graph(), x, &variables)
            .and_then(|inputs| inputs.payloads(&inputs.microbatches(1)?));
        async move {
            let payloads = payloads?;
            let training = self.mode == Mode::Train;
            if training {
                self.forget_outstanding().await?;
            }
            self.batch += 1;
            let mut run = self.round(|stage| Action::Forward { stage, microbatch: 0 });
            run.outputs = true;
            run.step = self.step + 1;
            run.inputs = self.hold_all(payloads);
            if training {
                // Set before the wait: whoever drops this future leaves the workers with a batch to forget.
                self.outstanding = Some(self.batch);
            }
            let answer = self.call(Request::Run(Box::new(run))).await;
            if answer.is_err() {
                self.outstanding = None; // the workers have forgotten it
            }
            self.outputs(answer?, training)
        }
    }

    /// The gradient of the model's first output back through all stages; parameter gradients add up
    /// until [`BossMan::optim_step`].
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
        let payloads: Result<Vec<Option<Payload>>, _> =
            grads.iter().map(|grad| grad.defined().then(|| to_payload(grad)).transpose()).collect();
        async move {
            let payloads = payloads?;
            let graph = self.model.graph();
            if payloads.len() > graph.outputs().len() {
                let message = format!("{} gradients for {} outputs", payloads.len(), graph.outputs().len());
                return Err(BossManError::Usage(message));
            }
            if payloads.iter().all(Option::is_none) {
                let message =
                    "backward needs the gradient of the output: call loss.backward() first, then prediction.grad()";
                return Err(BossManError::Usage(message.into()));
            }
            let mut payloads = payloads;
            payloads.resize_with(graph.outputs().len(), || None);
            let batch = self.outstanding.take().ok_or_else(|| {
                BossManError::Usage("backward without a forward in training mode; call forward() first".into())
            })?;
            let mut run = self.round(|stage| Action::Backward { stage, microbatch: 0 });
            run.batch = batch;
            run.step = self.step + 1;
            let grads =
                graph.outputs().iter().zip(payloads).map(|(value, payload)| {
                    (0, *value, payload.into_iter().map(|p| self.handle.slots.put(p)).collect())
                });
            run.grads = Some(grads.collect());
            self.call(Request::Run(Box::new(run))).await.map(drop)
        }
    }

    /// Applies the gradients gathered since the last step on every worker, and clears them.
    pub async fn optim_step(&mut self) -> Result<(), BossManError> {
        let mut run = self.round(|stage| Action::OptimStep { stage });
        self.step += 1;
        run.step = self.step;
        self.call(Request::Run(Box::new(run))).await.map(drop)
    }

    /// A whole training step: the batch cut into microbatches, forward and backward as the schedule
    /// says, the loss where the last layer is, and the optimizer step.
    ///
    /// The loss is the mean over the batch however unevenly it is cut: each microbatch counts by its
    /// samples.
    ///
    /// # Errors
    /// No loss was set, a tensor does not fit the model, or a worker failed; the step is then void on
    /// every worker.
    pub fn train_step<'a>(
        &'a mut self,
        batch: &Batch,
    ) -> impl Future<Output = Result<StepReport, BossManError>> + Send + 'a {
        let started = Instant::now();
        let prepared = self.prepare(batch);
        async move {
            let Prepared { samples, mut run, inputs, targets } = prepared?;
            self.forget_outstanding().await?;
            self.batch += 1;
            self.step += 1;
            (run.batch, run.step) = (self.batch, self.step);
            run.inputs = self.hold_all(inputs);
            run.targets = targets.into_iter().map(|(index, p)| (index, self.handle.slots.put(p))).collect();
            let answer = self.call(Request::Run(Box::new(run))).await?;
            let loss = answer.losses.iter().map(|(_, loss)| *loss).reduce(|sum, loss| sum + loss).unwrap_or(0.0);
            Ok(StepReport { step: self.step, loss, samples, time: started.elapsed() })
        }
    }

    fn prepare(&self, batch: &Batch) -> Result<Prepared, BossManError> {
        let spec = self
            .settings
            .loss
            .ok_or_else(|| BossManError::Usage("train_step needs a loss: Builder::loss or BossMan::set_loss".into()))?;
        let inputs = Inputs::check(self.model.graph(), &batch.x, &batch.variables)?;
        let ranges = inputs.microbatches(self.settings.microbatches)?;
        let samples = inputs.samples();
        let weights = ranges.iter().map(|range| range.len as f64 / samples as f64).collect();
        let schedule = self.plan.schedule(self.settings.schedule, ranges.len() as u32)?;
        let mut run = self.round(|stage| Action::OptimStep { stage });
        run.mode = Mode::Train;
        run.actions = schedule.workers;
        run.loss = Some(RoundLoss { spec, weights });
        Ok(Prepared {
            samples,
            run,
            inputs: inputs.payloads(&ranges)?,
            targets: inputs.targets(&batch.target, &ranges)?,
        })
    }

    /// Frees what the workers keep of a forward whose backward will not come.
    async fn forget_outstanding(&mut self) -> Result<(), BossManError> {
        match self.outstanding.take() {
            Some(batch) => self.call(Request::Discard { batch }).await.map(drop),
            None => Ok(()),
        }
    }

    /// A round in which every stage does one thing.
    fn round(&self, action: impl Fn(pipeline::ids::StageId) -> Action) -> RunRequest {
        let workers = 0..self.plan.workers() as u16;
        let stages = |worker| self.plan.stages_of(pipeline::ids::WorkerId(worker));
        let each = |specs: Vec<StageSpec>| specs.iter().map(|spec| action(spec.stage)).collect();
        RunRequest {
            batch: self.batch,
            step: self.step,
            mode: self.mode,
            actions: workers.map(|worker| each(stages(worker))).collect(),
            loss: None,
            outputs: false,
            inputs: Vec::new(),
            targets: Vec::new(),
            grads: None,
        }
    }

    fn hold_all(&self, payloads: Vec<(u32, ValueId, Payload)>) -> Vec<(u32, ValueId, Slot)> {
        payloads.into_iter().map(|(index, value, payload)| (index, value, self.handle.slots.put(payload))).collect()
    }

    fn outputs(&self, answer: Answer, training: bool) -> Result<Vec<Tensor>, BossManError> {
        let mut tensors = Vec::new();
        for (_, value, slot) in answer.outputs {
            let payload = self.handle.slots.take(slot);
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

struct Prepared {
    samples: u64,
    run: RunRequest,
    inputs: Vec<(u32, ValueId, Payload)>,
    targets: Vec<(u32, Payload)>,
}
