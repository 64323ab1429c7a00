//! A whole training step in one call.

use crate::data::batch_inputs::Inputs;
use crate::data::loss_weights::{count_targets, loss_weights};
use crate::recovery::replay::TrainingCall;
use crate::session::accumulated_gradients::AccumulatedGradients;
use crate::session::boss::BossMan;
use crate::session::settings::Settings;
use crate::tuning::layer_probes::first_target_bytes;
use crate::tuning::schedule_state::{LastStep, MicrobatchSizes};
use crate::Batch;
use crate::BossManError;
use layerspec::ValueId;
use link::Payload;
use pipeline::boss::RunRequest;
use pipeline::effect::Answer;
use pipeline::ids::{Slot, StageId, WorkerId};
use pipeline::message::{Mode, RoundLoss, RoundUpdate};
use pipeline::plan::PlanError;
use pipeline::replicas::MicrobatchAssignment;
use pipeline::samples::Samples;
use pipeline::schedule::{Action, Schedule};
use pipeline::watch::LayerHealth;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The report of a training step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// The number of the call of [`BossMan::train_step`], from 1.
    pub step: u64,
    /// The mean loss over the batch, before the update.
    pub loss: f32,
    /// Samples in the batch.
    pub samples: u64,
    /// The targets in the batch that are not ignored, if a sample has a class for each position, as
    /// text has tokens.
    pub tokens: Option<u64>,
    /// The time from call to answer.
    pub time: Duration,
    /// The learning rate of the update. `None` if gradients were only accumulated
    /// ([`crate::Builder::accumulate`]), overflowed ([`crate::Builder::precision`]), or were not
    /// finite and the step was skipped ([`crate::NonFinite::Skip`]).
    pub lr: Option<f64>,
    /// The norm of all gradients before clipping. `None` unless requested
    /// ([`crate::Builder::clip_grad_norm`]).
    pub grad_norm: Option<f64>,
}

impl BossMan {
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
    /// # Errors
    /// No loss was set, a tensor does not fit the model, or a worker failed. The step is then void
    /// on every worker. Also if the loss is not finite ([`crate::Guards`]), with the layer where
    /// that began.
    pub fn train_step<'a>(
        &'a mut self,
        batch: &Batch,
    ) -> impl Future<Output = Result<StepReport, BossManError>> + Send + 'a {
        let started = Instant::now();
        let prepared = self.prepare(batch, self.settings.microbatches);
        let data = self.register_data_of(batch);
        let preparing = started.elapsed();
        async move {
            let prepared = Arc::new(prepared?);
            data?;
            let done = self.with_recovery(TrainingCall::TrainStep { prepared, preparing }).await?;
            let report =
                done.report.ok_or_else(|| BossManError::Usage("the step has no report; please report it".into()))?;
            Ok(StepReport { time: started.elapsed(), ..report })
        }
    }

    pub(crate) async fn train_step_once(
        &mut self,
        prepared: &PreparedBatch,
        preparing: Duration,
    ) -> Result<StepReport, BossManError> {
        self.discard_implicit_batch().await?;
        self.choose_schedule(&prepared.sizes_of_microbatch(), prepared.microbatches).await?;
        self.open_registered_data().await?;
        self.train_prepared_batch(prepared, preparing).await
    }

    /// Chooses the schedule as the first step with this batch would, unless the user chose it.
    pub(crate) async fn choose_schedule_for(&mut self, batch: &Batch) -> Result<(), BossManError> {
        let prepared = self.prepare(batch, self.settings.microbatches)?;
        self.choose_schedule(&prepared.sizes_of_microbatch(), prepared.microbatches).await
    }

    async fn train_prepared_batch(
        &mut self,
        prepared: &PreparedBatch,
        preparing: Duration,
    ) -> Result<StepReport, BossManError> {
        let began = Instant::now();
        let PreparedBatch { samples, tokens, .. } = *prepared;
        let FinishedStep { schedule, answer, update, divisor, counted } =
            self.step_with_current_members(prepared).await?;
        let loss = answer.losses.iter().map(|(_, loss)| *loss).reduce(|sum, loss| sum + loss).unwrap_or(0.0);
        let skipped = update.is_some() && self.adapt_loss_scale(answer.grad_norm)?;
        let health = answer.health;
        let loss = match self.settings {
            Settings { accumulate: 1, loss_scale: None, .. } => loss,
            _ => (f64::from(loss) * divisor / counted) as f32,
        };
        let time = preparing + began.elapsed();
        self.scheduling.observed.record_step(&answer.spans, time);
        self.last_step = Some(LastStep { schedule, spans: answer.spans });
        self.record_shares(loss, samples, answer.behind);
        if update.is_some() {
            self.compare_periodically().await?;
        }
        let grad_norm = answer.grad_norm.filter(|_| self.settings.max_norm.is_some());
        let lr = update.filter(|_| !skipped).map(|u| u.lr);
        self.check_learning(&StepHealth { loss: Some(loss), lr, health })?;
        Ok(StepReport { step: self.step, loss, samples, tokens, time, lr, grad_norm })
    }

    /// Runs the step. If workers of a pool leave during the step, repeats it with the remaining
    /// ones.
    async fn step_with_current_members(&mut self, prepared: &PreparedBatch) -> Result<FinishedStep, BossManError> {
        loop {
            self.update_membership().await?;
            let step = self.step;
            match self.run_step(prepared).await {
                // The samples or the weights are at fault, and not the worker that noticed it.
                Err(BossManError::Worker(failure)) if failure.not_finite => {
                    return Err(self.locate_non_finite(failure, prepared).await);
                }
                Err(error) if self.recover(&error) => self.step = step,
                other => return other,
            }
        }
    }

    async fn run_step(&mut self, prepared: &PreparedBatch) -> Result<FinishedStep, BossManError> {
        let PreparedBatch { loss_weights, inputs, targets, microbatches, samples_to_read, .. } = prepared;
        let spec = self.required_loss()?.clone();
        let counted: f64 = loss_weights.iter().sum();
        let before = self.accumulated;
        let mut accumulated = before;
        if accumulated.steps == 0 {
            let scale = self.settings.loss_scale.map_or(1.0, |scale| scale.get());
            accumulated.divisor = counted * f64::from(self.settings.accumulate) / scale;
        }
        accumulated.steps += 1;
        accumulated.counted += counted;
        let updates = accumulated.steps == self.settings.accumulate;

        let schedule = self.schedule_of_step(*microbatches, updates)?;
        let update = updates.then(|| self.next_update(accumulated.divisor / accumulated.counted)).transpose()?;
        self.batch += 1;
        self.step += 1;
        let mut run = self.single_microbatch_round(|_| None);
        run.mode = Mode::Train;
        run.actions = schedule.workers.clone();
        run.order = schedule.order.clone();
        run.microbatch_assignment = schedule.microbatch_assignment.clone();
        run.microbatches = *microbatches;
        run.update = update;
        run.watch =
            self.monitor.checks_of_step(updates.then_some(self.updates + 1), self.settings.loss_scale.is_some());
        let weights = loss_weights.iter().map(|count| count / accumulated.divisor).collect();
        run.loss = Some(RoundLoss { spec, weights });
        run.samples = samples_to_read.clone();
        run.inputs = self.insert_slots(inputs.clone());
        let hold = |(index, payload): &(u32, Payload)| (*index, self.handle.slots.insert(payload.clone()));
        run.targets = targets.iter().map(hold).collect();
        // Counted before the wait: if this future is dropped, the workers continue.
        self.accumulated = if updates { AccumulatedGradients::default() } else { accumulated };
        self.updates += u64::from(updates);
        match self.run_round(run).await {
            Ok(answer) => Ok(FinishedStep { schedule, answer, update, divisor: accumulated.divisor, counted }),
            Err(error) => {
                self.updates -= u64::from(updates);
                if error.was_refused() {
                    self.accumulated = before;
                }
                Err(error)
            }
        }
    }

    /// Adapts the loss scale, if any, to the norm of the gradients. Returns whether the step was
    /// skipped, so that no parameter changed.
    ///
    /// # Errors
    /// Gradients overflowed in many steps in a row at every scale, so nothing would be learned any
    /// more.
    pub(crate) fn adapt_loss_scale(&mut self, norm: Option<f64>) -> Result<bool, BossManError> {
        let finite = norm.is_some_and(f64::is_finite);
        let scale = match &mut self.settings.loss_scale {
            Some(scale) => scale,
            // Without a norm nothing was skipped.
            None if norm.is_none() => return Ok(false),
            None => {
                self.updates -= u64::from(!finite);
                let said = self.monitor.check_gradient_norm(self.step, finite)?;
                said.iter().for_each(|text| self.warn(text));
                return Ok(!finite);
            }
        };
        self.updates -= u64::from(!finite);
        scale.after(finite).map_err(|why| BossManError::Usage(why.to_string()))?;
        Ok(!finite)
    }

    pub(crate) fn required_loss(&self) -> Result<&pipeline::LossSpec, BossManError> {
        let missing = || BossManError::Usage("train_step needs a loss: Builder::loss or BossMan::set_loss".into());
        self.settings.loss.as_ref().ok_or_else(missing)
    }

    /// Checks a batch and cuts it.
    pub(crate) fn prepare(&self, batch: &Batch, microbatches: u32) -> Result<PreparedBatch, BossManError> {
        let loss = self.required_loss()?;
        let inputs = Inputs::of(self.model.graph(), batch)?;
        let ranges = inputs.microbatches(microbatches)?;
        let targets = inputs.targets(batch, &ranges)?;
        Ok(PreparedBatch {
            samples: inputs.samples(),
            sizes: inputs.sizes_of(&ranges[0]),
            inputs: inputs.payloads(&ranges)?,
            target_bytes: first_target_bytes(&inputs, &targets),
            targets,
            loss_weights: loss_weights(loss, batch.target(), &ranges)?,
            tokens: count_targets(loss, batch.target())?,
            microbatches: ranges.len() as u32,
            samples_to_read: inputs.samples_to_read().cloned(),
        })
    }

    /// The next update of parameters, with gradients multiplied by `scale`.
    pub(crate) fn next_update(&self, scale: f64) -> Result<RoundUpdate, BossManError> {
        let missing = || BossManError::Usage("there is no optimizer yet: call send_optimizer() first".into());
        let optimizer = self.optimizer.ok_or_else(missing)?;
        let lr = optimizer.lr() * self.settings.lr_schedule.factor(self.updates);
        // In a pool the norm also proves that every worker has all gradients, so it is always
        // computed.
        let max_norm = self.settings.max_norm.or(self.pool.as_ref().map(|_| f64::INFINITY));
        // Gradients that are not finite never improve a model.
        Ok(RoundUpdate { lr, scale, max_norm, skip_infinite: max_norm.is_some() })
    }

    /// Adds the all-gathers of parameters to a round, if replicas shard them.
    pub(crate) fn with_parameter_gathers(&self, run: RunRequest) -> Result<RunRequest, BossManError> {
        let actions = self.plan.layout().gathered(run.actions).map_err(PlanError::from)?;
        Ok(RunRequest { actions, ..run })
    }

    /// A round over one microbatch in which every stage runs at most one action, on its first
    /// replica.
    pub(crate) fn single_microbatch_round(&self, action: impl Fn(StageId) -> Option<Action>) -> RunRequest {
        let microbatch_assignment = MicrobatchAssignment::default();
        let each = |worker| {
            let worker = WorkerId(worker);
            let takes = |action: &Action| match action.microbatch() {
                Some(m) => microbatch_assignment.worker(&self.plan.stage_placement, action.stage(), m) == Some(worker),
                None => true,
            };
            let stages = self.plan.stage_placement.stages_of(worker);
            stages.filter_map(&action).filter(takes).collect()
        };
        let actions = (0..self.plan.workers() as u16).map(each).collect();
        let run = RunRequest::of(self.batch, actions, self.settings.reduction());
        RunRequest { step: self.step, mode: self.mode, ..run }
    }

    pub(crate) fn insert_slots(&self, payloads: Vec<(u32, ValueId, Payload)>) -> Vec<(u32, ValueId, Slot)> {
        payloads.into_iter().map(|(index, value, payload)| (index, value, self.handle.slots.insert(payload))).collect()
    }
}

/// A completed step.
struct FinishedStep {
    schedule: Arc<Schedule>,
    answer: Answer,
    update: Option<RoundUpdate>,
    /// The divisor of the losses, and the counts of this batch.
    divisor: f64,
    counted: f64,
}

/// The figures of a completed step that the guards check.
pub(crate) struct StepHealth {
    /// `None` if the loss was computed by hand.
    pub(crate) loss: Option<f32>,
    pub(crate) lr: Option<f64>,
    pub(crate) health: Vec<LayerHealth>,
}

/// A batch cut into microbatches.
#[derive(Clone)]
pub(crate) struct PreparedBatch {
    pub(crate) microbatches: u32,
    pub(crate) samples: u64,
    pub(crate) tokens: Option<u64>,
    /// The weight of each microbatch in the mean of the loss.
    pub(crate) loss_weights: Vec<f64>,
    /// The sizes of the model's named dimensions in the first microbatch, which is the largest.
    pub(crate) sizes: layerspec::Bindings,
    pub(crate) inputs: Vec<(u32, ValueId, Payload)>,
    pub(crate) targets: Vec<(u32, Payload)>,
    /// The inputs of the first microbatch. `None` if workers read inputs and targets.
    pub(crate) target_bytes: Option<u64>,
    /// Where workers read both.
    pub(crate) samples_to_read: Option<Samples>,
}

impl PreparedBatch {
    /// The properties of a microbatch on which costs depend.
    pub(crate) fn sizes_of_microbatch(&self) -> MicrobatchSizes {
        MicrobatchSizes { sizes: self.sizes.clone(), target_bytes: self.target_bytes }
    }
}
