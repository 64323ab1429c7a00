//! A training run as `bossman train` does it: data, steps, validation after each epoch, metrics,
//! weights, a test.

use crate::checkpoint::{CheckpointWriter, Checkpoints, Policy, RunRecord, ScoreAtStep};
use crate::data::fixed_batch::FixedBatch;
use crate::data::{Batches, Dataset, Part, Parts};
use crate::inference::load_model::InitialWeights;
use crate::inference::translate::Translator;
use crate::output;
use crate::recovery::peer_snapshots::{random_id, PeerSnapshots};
use crate::recovery::policy::{self, Recovery};
use crate::recovery::resume::{self, ResumeState};
use crate::run_file::{Length, RunFile};
use crate::train::epochs::{best_path, validate_with_current_members, Epochs};
use crate::train::metrics::Metrics;
use crate::train::progress::Progress;
use crate::train::trace::Trace;
use crate::train::validation::ValidationResult;
use crate::workers::host::{RejoinWait, Workers};
use crate::{BossMan, BossManError, Builder, Collective, Model, RecoverySource, Replicas, StateDict};
use crate::{StepReport, Timelines};
use runtime::Handle;
use std::time::{Duration, Instant};

use crate::train::settings::TrainOptions;

/// The number of last steps in a trace.
const TRACED_STEPS: usize = 8;

/// The default number of microbatches in a pool, which is also the most workers that can share a
/// batch.
const POOL_MICROBATCHES: u32 = 8;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Training steps done.
    pub steps: u64,
    /// The time spent in steps and in validation.
    pub time: Duration,
    /// The score of the epoch with the lowest validation loss, and the number of steps until then.
    pub best: Option<(u64, ValidationResult)>,
    /// The score of the final weights on the test data, if there is any.
    pub test: Option<ValidationResult>,
}

/// Trains as a run file says. Files, data and cuts are checked before any worker is waited for.
///
/// # Errors
/// Anything in the files, the workers or the network; see [`BossManError`].
pub async fn run(file: &RunFile, settings: &TrainOptions) -> Result<Outcome, BossManError> {
    run_with(file, settings, |_| {}).await
}

/// As [`run`], and calls `on_step` after every step, repeated steps after a loss included.
///
/// # Errors
/// As for [`run`].
pub async fn run_with(
    file: &RunFile,
    settings: &TrainOptions,
    mut on_step: impl FnMut(&StepReport),
) -> Result<Outcome, BossManError> {
    let mut training = TrainingRun::prepare(file, settings).await?;
    let mut recovery = Recovery::default();
    loop {
        let error = match training.try_run(&mut recovery, &mut on_step).await {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        // A pool changes its members without recovery.
        if settings.pool {
            return Err(error);
        }
        if file.redundancy == RecoverySource::None {
            return Err(policy::with_resume_advice(error, training.checkpoints.is_some()));
        }
        let at = training.failed_at.take().unwrap_or_else(Instant::now);
        if !recovery.may_retry(&error, at, training.has_others()) {
            return Err(error);
        }
        training.evict_failed(&error);
    }
}

/// A run and its progress.
struct TrainingRun<'a> {
    file: &'a RunFile,
    settings: &'a TrainOptions,
    model: Model,
    train: Dataset,
    validation: Option<Dataset>,
    test: Option<Dataset>,
    steps: u64,
    fixed_batch: Option<FixedBatch>,
    run: RunRecord,
    checkpoints: Option<(Checkpoints, Policy)>,
    /// The state to resume from.
    resumed: Option<ResumeState>,
    /// Whether the run resumed.
    was_resumed: bool,
    workers: usize,
    /// The number of workers in the last membership.
    current_workers: usize,
    /// The address at which workers join again, once they have joined.
    port: Option<u16>,
    /// The weights to start from.
    weights: Option<InitialWeights>,
    traced_steps: Vec<(u64, Timelines)>,
    /// The time at which a step failed.
    failed_at: Option<Instant>,
    /// The workers' connections, until recovery decides how the run continues.
    handle: Option<Handle>,
    time: Duration,
}

impl<'a> TrainingRun<'a> {
    /// Reads and checks everything that does not need workers.
    async fn prepare(file: &'a RunFile, settings: &'a TrainOptions) -> Result<Self, BossManError> {
        if settings.pool && file.collective == Collective::Nccl {
            return Err(BossManError::Usage(
                "a pool cannot have `collective: nccl`, whose communicators do not outlive a worker that leaves".into(),
            ));
        }
        resume::check_weights_or_resume(settings)?;
        let model = Model::from_file(&file.model)?;
        for warning in model.graph().warnings() {
            output::warn(&format!("warning: {}: {warning}", file.model.display()));
        }
        let Parts { train, validation, test } = file.parts(&model)?;
        let steps = steps(file, train.samples());
        let fixed = FixedBatch::of(model.graph());
        if let Some(fixed) = &fixed {
            fixed.check_run(file, train.samples(), steps)?;
            if settings.pool {
                fixed.check_pool()?;
            }
            for (what, part) in [("the validation data", &validation), ("the test data", &test)] {
                part.as_ref().map_or(Ok(()), |part| fixed.check_divisible(what, part.samples()))?;
            }
        }
        let mut run = RunRecord {
            seed: file.seed,
            optimizer: file.optimizer.name().into(),
            shuffled: !settings.no_shuffle,
            group_by_length: file.group_by_length,
            batch_size: file.batch_size,
            microbatches: file.microbatches,
            accumulate: file.accumulate,
            samples: train.samples(),
            ..RunRecord::default()
        };
        let (checkpoints, resumed) = resume::open_checkpoints(file, settings, &run).await?;
        if let (Some(_), Some(texts)) = (&file.translate, file.pairs(Part::Train)) {
            Translator::new(&model, texts)?;
        }
        let workers = match settings.pool {
            true => settings.fleet.initial_worker_count(file),
            false => settings.fleet.worker_count(file)?,
        };
        let weights = match &resumed {
            // Weights are checked against the model before the run waits for workers.
            Some(ResumeState::Checkpoint(state, _)) => state.weights.fit_to(model.graph()).map(|_| None)?,
            _ => file.initial_weights(settings.weights.as_deref(), &model)?,
        };
        if let RecoverySource::PeerSnapshot(_) = file.redundancy {
            check_peer_snapshots(settings, workers)?;
            let before = resumed.as_ref().and_then(|found| found.run().run_id);
            run.run_id = before.or_else(|| Some(random_id()));
        }
        let left = steps % u64::from(file.accumulate);
        let training = TrainingRun {
            file,
            settings,
            model,
            train,
            validation,
            test,
            steps,
            fixed_batch: fixed,
            run,
            checkpoints,
            was_resumed: resumed.is_some(),
            resumed,
            workers,
            current_workers: workers,
            port: None,
            weights,
            traced_steps: Vec::new(),
            failed_at: None,
            handle: None,
            time: Duration::ZERO,
        };
        training.builder().check(workers)?;
        if let Some(path) = &settings.save {
            StateDict::can_save(path)?;
            StateDict::can_save(&best_path(path))?;
        }
        settings.trace.as_deref().map_or(Ok(()), Trace::can_save)?;
        if left > 0 {
            let accumulate = file.accumulate;
            output::warn(&format!(
                "warning: {steps} steps are no multiple of accumulate: {accumulate}; the last {left} change nothing"
            ));
        }
        Ok(training)
    }

    fn builder(&self) -> Builder {
        let (file, pool) = (self.file, self.settings.pool);
        let mut builder = file.builder(self.model.clone());
        if pool {
            builder = builder.collective(Collective::Quic);
            builder = builder.replicas(file.replicas.clone().unwrap_or(Replicas::Of(vec![self.workers as u16])));
        }
        // The default depends on the number of workers of the first membership.
        let before = self.resumed.as_ref().map_or(self.run.microbatches, |found| found.run().microbatches);
        match before {
            0 if pool => builder.microbatches(POOL_MICROBATCHES),
            before => builder.microbatches(before),
        }
    }

    /// Opens the metrics. A run that resumes appends to them.
    fn metrics(&self) -> Result<Option<Metrics>, BossManError> {
        let Some(path) = self.settings.metrics.as_deref() else { return Ok(None) };
        match self.resumed.as_ref().and_then(|found| found.run().metrics) {
            Some(bytes) if bytes > 0 => Metrics::resume(path, bytes).map(Some),
            _ => Metrics::create(path).map(Some),
        }
    }

    /// Waits for workers. After a loss, waits for the remaining ones.
    async fn wait_for_workers(&mut self, recovery: &mut Recovery) -> Result<Workers, BossManError> {
        let TrainOptions { fleet, quiet, pool, .. } = self.settings;
        let host = fleet.host_with_data(self.workers, self.file).on_stderr(*quiet).open_to_joins(*pool);
        let Some(port) = self.port else {
            let workers = host.wait().await?;
            self.port = Some(workers.port());
            return Ok(workers);
        };
        // Local workers get another port.
        let host = if fleet.local == self.workers { host } else { host.port(port) };
        // Local workers are started afresh. One of the others may be missing.
        let again = RejoinWait::new(&self.builder(), self.workers, host.survivors_of(self.current_workers));
        let workers = host.wait_for_rejoin(again).await?;
        recovery.workers_rejoined();
        (self.port, self.current_workers) = (Some(workers.port()), workers.count);
        Ok(workers)
    }

    /// Whether the run can continue without the worker that failed.
    fn has_others(&self) -> bool {
        self.current_workers > 1 || self.settings.fleet.local > 0
    }

    /// Closes all connections. A worker that is unfit for its part is told not to join again.
    fn evict_failed(&mut self, error: &BossManError) {
        if let Some(handle) = self.handle.take() {
            policy::evict_unfit(error, &handle);
        }
    }

    /// Finds the state to resume from after a loss of workers or of the boss.
    async fn find_resume_state(
        &mut self,
        boss: &mut BossMan,
        again: bool,
        recovery: &mut Recovery,
    ) -> Result<(), BossManError> {
        if !again && self.resumed.is_none() {
            return Ok(());
        }
        let already_read = self.resumed.take();
        let checkpoints = self.checkpoints.as_ref().map(|(checkpoints, _)| checkpoints);
        let already_read = (already_read, self.settings.metrics.as_deref());
        self.resumed = resume::newest_state(boss, (&self.run, self.steps), checkpoints, already_read).await?;
        if self.resumed.is_none() && self.was_resumed {
            // The initial weights are not stored.
            return Err(BossManError::Usage("recovery: there is no whole checkpoint left to go on from".into()));
        }
        if again {
            let from = self.resumed.as_ref().map(|found| (found.counters().step, found.name()));
            recovery.report_resume(self.current_workers, self.workers, from);
        }
        Ok(())
    }

    /// Trains to the end or to the first failure, from the beginning or from the state to resume
    /// from.
    async fn try_run(
        &mut self,
        recovery: &mut Recovery,
        on_step: &mut impl FnMut(&StepReport),
    ) -> Result<Outcome, BossManError> {
        let (file, settings, steps) = (self.file, self.settings, self.steps);
        let again = self.port.is_some();
        // The state is checked before the run waits for workers, if it is known.
        let known = !again && (self.resumed.is_none() || self.run.run_id.is_none());
        let at_first = if known { self.metrics()? } else { None };
        let workers = self.wait_for_workers(recovery).await?;
        let mut boss = self.builder().build(workers)?;
        self.handle = Some(boss.handle.clone());
        self.run.microbatches = boss.settings.microbatches;
        boss.distribute_model().await?;
        self.find_resume_state(&mut boss, again, recovery).await?;
        let mut metrics = if at_first.is_some() { at_first } else { self.metrics()? };
        let done = self.resumed.as_ref().map_or(0, |found| found.counters().step);
        let metrics_before = self.resumed.as_ref().map(|found| found.run().metrics.unwrap_or(0));
        if let Some(weights) = self.weights.as_ref().filter(|_| self.resumed.is_none()) {
            weights.load(&mut boss).await?;
        }
        boss.send_optimizer(file.optimizer).await?;
        // A worker that lacks a file fails now, not after the first epoch.
        for data in [Some(&self.train), self.validation.as_ref(), self.test.as_ref()].into_iter().flatten() {
            if data.id().is_some() {
                boss.open_data(data).await?;
            }
        }
        let seed = (!settings.no_shuffle).then_some(file.seed);
        let per_epoch = self.train.samples().div_ceil(file.batch_size);
        let batches = Batches::after(self.train.clone(), file.batch_size, seed, done);
        let mut batches = batches.grouped_by_length(file.group_by_length).prefetch()?;
        let mut next = None;
        let mut best = None;
        let mut progress = Progress::start(steps, done, settings.quiet);
        let mut snapshots = None;
        if let (RecoverySource::PeerSnapshot(every), Some(run)) = (file.redundancy, self.run.run_id) {
            let from = self.resumed.as_ref().and_then(ResumeState::peer_state);
            snapshots = Some(PeerSnapshots::new(run, every, from));
        }
        if let Some(found) = self.resumed.take() {
            if done < steps && !settings.pool {
                // Stages are placed before they load the state.
                let first = batches.next_batch().await?;
                boss.choose_schedule_for(&first).await?;
                next = Some(first);
            }
            found.restore(&mut boss).await?;
            progress.line(&format!("going on after step {done}, with {} of it", found.name()));
            best = found.run().best.map(|best| (best.step, best.score()));
        }
        if settings.pool {
            boss.open_pool().await?;
        }
        let mut writing =
            self.checkpoints.clone().map(|(checkpoints, policy)| CheckpointWriter::new(checkpoints, policy));
        let mut epochs = Epochs::new(file, self.validation.clone(), settings.save.as_deref(), best);
        recovery.state_restored(&progress);
        let trained = async {
            for step in done + 1..=steps {
                let batch = match next.take() {
                    Some(first) => first,
                    None => batches.next_batch().await?,
                };
                let mut report = boss.train_step(&batch).await?;
                // Without a named batch dimension the step cannot count samples.
                report.samples = self.fixed_batch.as_ref().map_or(report.samples, |fixed| fixed.samples);
                progress.step(&report);
                recovery.step_done(step, &progress);
                on_step(&report);
                if let Some(metrics) = &mut metrics {
                    metrics.write(&report)?;
                }
                if settings.trace.is_some() {
                    self.traced_steps.extend(boss.timelines().map(|timelines| (report.step, timelines)));
                    self.traced_steps.drain(..self.traced_steps.len().saturating_sub(TRACED_STEPS));
                }
                if step.is_multiple_of(per_epoch) || step == steps {
                    epochs.end_epoch(&mut boss, step, step.div_ceil(per_epoch), &progress, metrics.as_mut()).await?;
                }
                if writing.is_some() || snapshots.is_some() {
                    let now = RunRecord {
                        metrics: metrics.as_ref().map(Metrics::bytes).or(metrics_before),
                        best: epochs.best.as_ref().map(|(step, validation)| ScoreAtStep::of(*step, &validation.score)),
                        validation: epochs.last.as_ref().map(|(step, score)| ScoreAtStep::of(*step, score)),
                        ..self.run.clone()
                    };
                    if let Some(snapshots) = snapshots.as_mut().filter(|_| step < steps) {
                        snapshots.after_step(&mut boss, step, &now, &progress).await;
                    }
                    let looked = epochs.last.is_some_and(|(of, _)| of == step);
                    let ended = (step == steps, looked);
                    if let Some(writing) = &mut writing {
                        writing.after_step(&mut boss, step, ended, (now, metrics.as_ref()), &progress).await;
                    }
                }
            }
            Ok::<_, BossManError>(())
        };
        let trained = trained.await;
        self.failed_at = trained.is_err().then(Instant::now);
        // A checkpoint in progress is completed even if a step failed: the run resumes from it.
        match writing {
            Some(mut writing) if trained.is_ok() => writing.wait_for_pending(&progress).await,
            Some(writing) => writing.end(&progress).await,
            None => {}
        }
        self.time += if trained.is_ok() { progress.end() } else { progress.abandon() };
        trained?;
        if let Some(path) = &settings.trace {
            Trace::of(&self.traced_steps).save(path)?;
        }
        let test = match &self.test {
            Some(test) => Some(validate_with_current_members(&mut boss, file, Part::Test, test).await?),
            None => None,
        };
        boss.shutdown().await;
        Ok(Outcome { steps, time: self.time, best: epochs.best, test })
    }
}

/// Whether a worker can have a neighbour that survives its loss.
fn check_peer_snapshots(settings: &TrainOptions, workers: usize) -> Result<(), BossManError> {
    let problem = match workers {
        _ if settings.pool => "a pool's replicas have each other's state; leave it out",
        1 => "one worker has no neighbour; take `checkpoint`",
        _ if settings.fleet.local > 0 => {
            "local workers keep nothing, for they are started afresh where one is lost; start `worker` programs of your own, \
             or take `checkpoint`"
        }
        _ => return Ok(()),
    };
    Err(BossManError::Usage(format!("`redundancy: neighbour`: {problem}")))
}

fn steps(file: &RunFile, samples: u64) -> u64 {
    match file.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => epochs.saturating_mul(samples.div_ceil(file.batch_size)),
    }
}
