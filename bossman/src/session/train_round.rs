//! The round of a training step: what the workers run, and what is done with their answers.

use super::learning_monitor::{chance_loss, StepHealth};
use super::prepared_batch::PreparedBatch;
use super::step_report::StepReport;
use super::train_step::TrainedStep;
use super::trainer::Trainer;
use crate::data::loss_weights::expect_counted;
use crate::events::Remark;
use crate::tuning::schedule_state::LastStep;
use crate::BossManError;
use link::Payload;
use pipeline::boss::{Instruction, RoundResults};
use pipeline::message::{Failure, FailureKind, Mode, RoundLoss, RoundUpdate};
use pipeline::replicas::Speed;
use pipeline::schedule::Schedule;
use pipeline::watch::FiniteCheck;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Below this part of the optimizer's learning rate, unchanged weights are no fault.
const MIN_LR_FRACTION: f64 = 0.01;

/// A completed round of a step.
struct FinishedRound {
    schedule: Arc<Schedule>,
    results: RoundResults,
    update: Option<RoundUpdate>,
    /// The divisor of the losses, and the weight of this batch.
    divisor: f64,
    counted: f64,
}

impl Trainer {
    /// Runs a step. `preparing` is the time that its batch took.
    pub(super) async fn run_step(
        &mut self,
        batch: &PreparedBatch,
        preparing: Duration,
    ) -> Result<TrainedStep, BossManError> {
        let began = Instant::now();
        if self.has_nothing_to_learn(batch) {
            return Ok(self.pass_over(batch, preparing));
        }
        let before = self.position.counters.step;
        let error = match self.train_batch(batch).await {
            Ok(done) => return self.finish_step(batch, done, preparing + began.elapsed()),
            // The samples or the weights are at fault, and not the worker that noticed it.
            Err(BossManError::Worker(failure)) if failure.kind == FailureKind::NotFinite => {
                self.locate_non_finite(failure, batch).await
            }
            Err(error) => error,
        };
        // The step is void. A step that is tried again has the same dropout.
        self.position.counters.step = before;
        Err(error)
    }

    /// Whether an update is due and no target counts in all of its steps. A member of a pool counts
    /// steps by their rounds, so there it is an error.
    fn has_nothing_to_learn(&self, batch: &PreparedBatch) -> bool {
        let (before, accumulate) = (self.position.accumulated, self.settings.accumulate);
        let counted: f64 = batch.loss_weights.iter().sum();
        let accumulated = before.with_step(counted, accumulate, None);
        accumulated.steps == accumulate
            && accumulated.counted == 0.0
            && !before.has_manual_backward
            && !self.strategy.is_pool
    }

    /// A step that changes nothing. Gradients of earlier steps that wait for the update are 0.
    fn pass_over(&mut self, batch: &PreparedBatch, time: Duration) -> TrainedStep {
        self.position.counters.step += 1;
        self.position.accumulated = Default::default();
        let step = self.position.counters.step;
        if let Some(warning) = self.monitor.nothing_learned_warning(step) {
            self.events.warn_at(step, warning);
        }
        let (samples, tokens) = (batch.samples, batch.tokens);
        let report =
            StepReport { step, loss: f32::NAN, samples, tokens, time, lr: None, grad_norm: None };
        TrainedStep { report, updated: false, behind: Vec::new() }
    }

    async fn train_batch(&mut self, batch: &PreparedBatch) -> Result<FinishedRound, BossManError> {
        let spec = self.required_loss()?.clone();
        let counted: f64 = batch.loss_weights.iter().sum();
        let before = self.position.accumulated;
        let (accumulate, scale) = (self.settings.accumulate, self.position.counters.loss_scale);
        let accumulated = before.with_step(counted, accumulate, scale);
        let updates = accumulated.steps == accumulate;
        if updates {
            expect_counted(accumulated.counted).map_err(|error| match error {
                BossManError::Input { name, problem } => {
                    let step = self.position.counters.step + 1;
                    BossManError::Input { name, problem: format!("step {step}: {problem}") }
                }
                other => other,
            })?;
        }

        let schedule = self.schedule_of_step(batch.microbatches, self.strategy.ending(updates))?;
        let update = updates.then(|| self.next_update(accumulated.gradient_scale())).transpose()?;
        self.position.next_batch();
        self.position.counters.step += 1;
        let mut run = self.single_microbatch_round(|_| None);
        run.mode = Mode::Train;
        run.actions = schedule.workers.clone();
        run.order = schedule.order.clone();
        run.microbatch_assignment = schedule.microbatch_assignment.clone();
        run.microbatches = batch.microbatches;
        run.update = update;
        let next_update = self.position.counters.updates + 1;
        run.watch = self.monitor.checks_of_step(updates.then_some(next_update), scale.is_some());
        let weights = batch.loss_weights.iter().map(|count| count / accumulated.divisor).collect();
        run.loss = Some(RoundLoss { spec, weights, likeliest: false });
        run.samples = batch.samples_to_read.clone();
        run.inputs = self.insert_slots(batch.inputs.clone());
        let hold =
            |(index, payload): &(u32, Payload)| (*index, self.handle.slots.insert(payload.clone()));
        run.targets = batch.targets.iter().map(hold).collect();
        // Counted before the wait: if this future is dropped, the workers continue.
        self.position.accumulated = if updates { Default::default() } else { accumulated };
        self.position.counters.updates += u64::from(updates);
        match self.run_round(run).await {
            Ok(results) => Ok(FinishedRound {
                schedule,
                results,
                update,
                divisor: accumulated.divisor,
                counted,
            }),
            Err(error) => {
                self.position.counters.updates -= u64::from(updates);
                if error.was_refused() {
                    self.position.accumulated = before;
                }
                Err(error)
            }
        }
    }

    /// Records a completed step and checks its figures.
    fn finish_step(
        &mut self,
        batch: &PreparedBatch,
        done: FinishedRound,
        time: Duration,
    ) -> Result<TrainedStep, BossManError> {
        let FinishedRound { schedule, results, update, divisor, counted } = done;
        let losses = results.losses.iter().map(|(_, loss)| *loss);
        let sum = losses.reduce(|sum, loss| sum + loss).unwrap_or(0.0);
        let is_mean = self.settings.accumulate == 1 && self.position.counters.loss_scale.is_none();
        let loss = match counted > 0.0 {
            true if is_mean => sum,
            true => (f64::from(sum) * divisor / counted) as f32,
            false => f32::NAN,
        };
        let skipped = update.is_some() && self.adapt_loss_scale(results.grad_norm)?;
        self.schedules.record_step(LastStep { schedule, spans: results.spans }, time);
        let lr = update.filter(|_| !skipped).map(|update| update.lr);
        let counts = counted > 0.0;
        self.check_learning(&StepHealth {
            loss: counts.then_some(loss),
            lr,
            layers: results.health,
        })?;
        let report = StepReport {
            step: self.position.counters.step,
            loss,
            samples: batch.samples,
            tokens: batch.tokens,
            time,
            lr,
            grad_norm: results.grad_norm.filter(|_| self.strategy.max_norm.is_some()),
        };
        Ok(TrainedStep { report, updated: update.is_some(), behind: results.behind })
    }

    /// The next update of parameters, with gradients multiplied by `scale`.
    pub(super) fn next_update(&self, scale: f64) -> Result<RoundUpdate, BossManError> {
        let missing =
            || BossManError::Usage("there is no optimizer yet: call send_optimizer() first".into());
        let optimizer = self.optimizer.ok_or_else(missing)?;
        let factor = self.settings.lr_schedule.factor(self.position.counters.updates);
        let max_norm = self.strategy.applied_max_norm();
        // Gradients that are not finite never improve a model.
        let skip_infinite = max_norm.is_some();
        Ok(RoundUpdate { lr: optimizer.lr() * factor, scale, max_norm, skip_infinite })
    }

    /// Adapts the loss scale, if any, to the norm of the gradients. Returns whether the step was
    /// skipped, so that no parameter changed.
    ///
    /// # Errors
    /// Gradients overflowed in many steps in a row at every scale, so nothing would be learned any
    /// more.
    pub(super) fn adapt_loss_scale(&mut self, norm: Option<f64>) -> Result<bool, BossManError> {
        let counters = &mut self.position.counters;
        let finite = norm.is_some_and(f64::is_finite);
        match &mut counters.loss_scale {
            Some(scale) => {
                counters.updates -= u64::from(!finite);
                scale.after(finite).map_err(|why| BossManError::NotFinite(why.to_string()))?;
            }
            // Without a norm nothing was skipped.
            None if norm.is_none() => return Ok(false),
            None => {
                counters.updates -= u64::from(!finite);
                let warning = self.monitor.check_gradient_norm(counters.step, finite)?;
                let step = counters.step;
                warning.into_iter().for_each(|text| self.events.warn_at(step, text));
            }
        }
        Ok(!finite)
    }

    /// Checks a completed step and prints warnings.
    ///
    /// # Errors
    /// Layers were updated with gradients that are not finite.
    pub(super) fn check_learning(&mut self, health: &StepHealth) -> Result<(), BossManError> {
        let (step, graph) = (self.position.counters.step, self.model.graph());
        let chance = || chance_loss(self.loss.as_ref()?, graph);
        let of_loss = health.loss.and_then(|loss| self.monitor.loss_warning(step, loss, chance));
        let below = health
            .loss
            .and_then(|loss| self.monitor.negative_loss_warning(step, loss, self.loss.as_ref()));
        // A schedule may make the rate as small as it needs.
        let usual = self.optimizer.map_or(0.0, |optimizer| optimizer.lr());
        let lr = health.lr.filter(|lr| *lr >= MIN_LR_FRACTION * usual).unwrap_or(0.0);
        let of_layers = self.monitor.layer_warnings(graph, step, lr, &health.layers);
        let of_layers = of_layers.map_err(BossManError::NotFinite)?;
        let of_loss = of_loss.into_iter().chain(below).map(Remark::from);
        for remark in of_layers.into_iter().chain(of_loss) {
            self.events.warn_at(step, remark);
        }
        Ok(())
    }

    /// Finds the layer at fault for a loss that is not finite: runs the samples forward once more,
    /// with every number checked.
    async fn locate_non_finite(&mut self, failure: Failure, batch: &PreparedBatch) -> BossManError {
        let began = match self.forward_with_checks(batch, failure.microbatch).await {
            Err(BossManError::Worker(found)) if found.kind == FailureKind::NotFinite => {
                format!("it began here: {}", Failure { step: None, ..found })
            }
            Err(other) => format!("the layer at fault is unknown: {other}"),
            Ok(()) => "when the samples went forward once more every number was finite".into(),
        };
        let message = format!(
            "{}; {began}. The step changed no weights; look at the data, lower the learning rate \
             or set `clip_grad_norm`, or skip such steps with `guards: {{nonfinite: skip}}`",
            failure.message
        );
        BossManError::Worker(Failure { message, ..failure })
    }

    async fn forward_with_checks(
        &mut self,
        prepared: &PreparedBatch,
        only: Option<u32>,
    ) -> Result<(), BossManError> {
        let batch = self.position.next_batch();
        // Workers would store the activations of all microbatches at once.
        let taken = |microbatch: u32| only.is_none_or(|only| only == microbatch);
        let mut run = self.single_microbatch_round(|_| None);
        // The mode of the step, with the same dropout.
        run.mode = Mode::Train;
        run.microbatches = prepared.microbatches;
        run.microbatch_assignment =
            self.plan.assign_batches(run.microbatches, |_, _| Speed::default());
        run.actions = self.plan.forwards(&run.microbatch_assignment, run.microbatches);
        run.actions
            .iter_mut()
            .for_each(|list| list.retain(|action| action.microbatch().is_none_or(taken)));
        run.watch.finite = FiniteCheck::All;
        run.loss = Some(RoundLoss {
            spec: self.required_loss()?.clone(),
            weights: vec![1.0; run.microbatches as usize],
            likeliest: false,
        });
        run.samples = prepared.samples_to_read.clone();
        run.inputs = self.insert_slots(
            prepared.inputs.iter().filter(|(index, ..)| taken(*index)).cloned().collect(),
        );
        let targets = prepared.targets.iter().filter(|(index, _)| taken(*index));
        run.targets = targets
            .map(|(index, payload)| (*index, self.handle.slots.insert(payload.clone())))
            .collect();
        self.run_round(self.with_parameter_gathers(run)?).await?;
        self.call(Instruction::Discard { batch }).await
    }
}
