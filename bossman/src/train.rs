//! What `bossman train` does: data in, steps, a look at the model after each epoch, and out come metrics, weights and a test.

use crate::checkpoint::{Best, Checkpoints, Policy, Run, Writing};
use crate::data::{Batches, Dataset, Part, Parts};
use crate::epochs::{best_path, look_with_who_is_here, Epochs};
use crate::fixed_batch::FixedBatch;
use crate::fleet::FleetSettings;
use crate::host::{Again, Workers};
use crate::look::Look;
use crate::metrics::Metrics;
use crate::output;
use crate::progress::Progress;
use crate::ready::Initial;
use crate::recovery::{self, Recovery};
use crate::redundancy::{number, Copies};
use crate::resume::{self, Found};
use crate::run_file::{Length, RunFile};
use crate::trace::Trace;
use crate::translate::Translator;
use crate::{BossMan, BossManError, Builder, Collective, Model, Redundancy, Replicas, StateDict};
use crate::{StepReport, Timelines};
use runtime::Handle;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Steps in a trace: the last ones.
const TRACED: usize = 8;

/// What `bossman train` is told beside the run file.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Which workers.
    pub fleet: FleetSettings,
    /// A line of JSON a step goes here.
    pub metrics: Option<PathBuf>,
    /// The timelines of the last steps go here.
    pub trace: Option<PathBuf>,
    /// Weights to start from; not where the run goes on with a checkpoint.
    pub weights: Option<PathBuf>,
    /// Where weights go after each epoch; those of the best one go beside them, to [`crate::best_path`].
    pub save: Option<PathBuf>,
    /// Go on with a checkpoint of the run: the last, or that of this name; `if-any`: the last, or begin where there is none.
    pub resume: Option<Option<String>>,
    /// Take samples in the order of the file.
    pub no_shuffle: bool,
    /// What is said of progress goes to standard error, whose lines nobody parses.
    pub quiet: bool,
    /// Whoever holds the ticket may join and leave while it goes on (`bossman serve`).
    pub pool: bool,
}

/// Microbatches of a pool's batches, where the run file does not say: as many workers can share a batch.
const MICROBATCHES_OF_POOL: u32 = 8;

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Training steps done.
    pub steps: u64,
    /// Time spent in them, and in looking at the model after each epoch.
    pub time: Duration,
    /// After the epoch whose validation loss was the lowest, with the number of steps until then.
    pub best: Option<(u64, Look)>,
    /// With the final weights on the test data, where there is some.
    pub test: Option<Look>,
}

/// Trains as a run file says. Files, data and cuts are checked before any worker is waited for.
///
/// # Errors
/// Anything in the files, the workers or the network; see [`BossManError`].
pub async fn run(file: &RunFile, settings: &Settings) -> Result<Outcome, BossManError> {
    run_with(file, settings, |_| {}).await
}

/// The same, and after every step `on_step` is told how it went, also of those that are done again where workers were lost.
///
/// # Errors
/// As for [`run`].
pub async fn run_with(
    file: &RunFile,
    settings: &Settings,
    mut on_step: impl FnMut(&StepReport),
) -> Result<Outcome, BossManError> {
    let mut training = Training::prepare(file, settings).await?;
    let mut recovery = Recovery::default();
    loop {
        let error = match training.attempt(&mut recovery, &mut on_step).await {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        // In a pool workers come and go without that.
        if settings.pool {
            return Err(error);
        }
        if file.redundancy == Redundancy::None {
            return Err(recovery::ended(error, training.checkpoints.is_some()));
        }
        let at = training.failed_at.take().unwrap_or_else(Instant::now);
        if !recovery.may_go_on(&error, at, training.has_others()) {
            return Err(error);
        }
        training.leave(&error);
    }
}

/// A run, and how far it has come.
struct Training<'a> {
    file: &'a RunFile,
    settings: &'a Settings,
    model: Model,
    train: Dataset,
    validation: Option<Dataset>,
    test: Option<Dataset>,
    steps: u64,
    fixed: Option<FixedBatch>,
    run: Run,
    checkpoints: Option<(Checkpoints, Policy)>,
    /// What it goes on with.
    resumed: Option<Found>,
    /// It did not begin at the beginning.
    went_on: bool,
    workers: usize,
    /// As many took part last.
    here: usize,
    /// Where workers that join again look for it, once they have joined.
    port: Option<u16>,
    /// The weights to begin with.
    weights: Option<Initial>,
    traced: Vec<(u64, Timelines)>,
    /// When a step failed.
    failed_at: Option<Instant>,
    /// The workers' connections, until it is known how the run goes on.
    handle: Option<Handle>,
    time: Duration,
}

impl<'a> Training<'a> {
    /// Reads and checks all that can be before any worker is waited for.
    async fn prepare(file: &'a RunFile, settings: &'a Settings) -> Result<Self, BossManError> {
        if settings.pool && file.collective == Collective::Nccl {
            return Err(BossManError::Usage(
                "a pool cannot have `collective: nccl`, whose communicators do not outlive a worker that leaves".into(),
            ));
        }
        resume::check_beginning(settings)?;
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
                part.as_ref().map_or(Ok(()), |part| fixed.check_whole(what, part.samples()))?;
            }
        }
        let mut run = Run {
            seed: file.seed,
            optimizer: file.optimizer.name().into(),
            shuffled: !settings.no_shuffle,
            group_by_length: file.group_by_length,
            batch_size: file.batch_size,
            microbatches: file.microbatches,
            accumulate: file.accumulate,
            samples: train.samples(),
            ..Run::default()
        };
        let (checkpoints, resumed) = resume::checkpoints(file, settings, &run).await?;
        if let (Some(_), Some(texts)) = (&file.translate, file.pairs(Part::Train)) {
            Translator::new(&model, texts)?;
        }
        let workers = match settings.pool {
            true => settings.fleet.at_first(file),
            false => settings.fleet.count(file)?,
        };
        let weights = match &resumed {
            // That they fit is known before any worker is waited for.
            Some(Found::Checkpoint(state, _)) => state.weights.fitting(model.graph()).map(|_| None)?,
            _ => file.initial(settings.weights.as_deref(), &model)?,
        };
        if let Redundancy::Neighbour(_) = file.redundancy {
            check_neighbours(settings, workers)?;
            let before = resumed.as_ref().and_then(|found| found.run().number);
            run.number = before.or_else(|| Some(number()));
        }
        let left = steps % u64::from(file.accumulate);
        let training = Training {
            file,
            settings,
            model,
            train,
            validation,
            test,
            steps,
            fixed,
            run,
            checkpoints,
            went_on: resumed.is_some(),
            resumed,
            workers,
            here: workers,
            port: None,
            weights,
            traced: Vec::new(),
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
        // Where nothing is said they depend on how many workers there were.
        let before = self.resumed.as_ref().map_or(self.run.microbatches, |found| found.run().microbatches);
        match before {
            0 if pool => builder.microbatches(MICROBATCHES_OF_POOL),
            before => builder.microbatches(before),
        }
    }

    /// The metrics, to which those of a run that goes on are added.
    fn metrics(&self) -> Result<Option<Metrics>, BossManError> {
        let Some(path) = self.settings.metrics.as_deref() else { return Ok(None) };
        match self.resumed.as_ref().and_then(|found| found.run().metrics) {
            Some(bytes) if bytes > 0 => Metrics::resume(path, bytes).map(Some),
            _ => Metrics::create(path).map(Some),
        }
    }

    /// Waits for workers, where some were lost for those that are left.
    async fn gather(&mut self, recovery: &mut Recovery) -> Result<Workers, BossManError> {
        let Settings { fleet, quiet, pool, .. } = self.settings;
        let host = fleet.host_of(self.workers, self.file).on_stderr(*quiet).open(*pool);
        let Some(port) = self.port else {
            let workers = host.wait().await?;
            self.port = Some(workers.port());
            return Ok(workers);
        };
        // Local workers are told another one.
        let host = if fleet.local == self.workers { host } else { host.port(port) };
        // Local ones are started afresh. Of the others one may be lost.
        let again = Again::new(&self.builder(), self.workers, host.left_of(self.here));
        let workers = host.wait_again(again).await?;
        recovery.here();
        (self.port, self.here) = (Some(workers.port()), workers.count);
        Ok(workers)
    }

    /// Whether there are workers beside one that fails, or another is started in its place.
    fn has_others(&self) -> bool {
        self.here > 1 || self.settings.fleet.local > 0
    }

    /// Closes what connections there are. A worker that is not fit for its part does not come again.
    fn leave(&mut self, error: &BossManError) {
        if let Some(handle) = self.handle.take() {
            recovery::evict_unfit(error, &handle);
        }
    }

    /// Finds what the run goes on with, where workers were lost or the boss was.
    async fn find(&mut self, boss: &mut BossMan, again: bool, recovery: &mut Recovery) -> Result<(), BossManError> {
        if !again && self.resumed.is_none() {
            return Ok(());
        }
        let at_hand = self.resumed.take();
        let checkpoints = self.checkpoints.as_ref().map(|(checkpoints, _)| checkpoints);
        let at_hand = (at_hand, self.settings.metrics.as_deref());
        self.resumed = resume::newest(boss, (&self.run, self.steps), checkpoints, at_hand).await?;
        if self.resumed.is_none() && self.went_on {
            // What it began with is not known any more.
            return Err(BossManError::Usage("recovery: there is no whole checkpoint left to go on from".into()));
        }
        if again {
            let from = self.resumed.as_ref().map(|found| (found.counters().step, found.name()));
            recovery.goes_on(self.here, self.workers, from);
        }
        Ok(())
    }

    /// Trains to the end, or until something fails, from the beginning or from what the run goes on with.
    async fn attempt(
        &mut self,
        recovery: &mut Recovery,
        on_step: &mut impl FnMut(&StepReport),
    ) -> Result<Outcome, BossManError> {
        let (file, settings, steps) = (self.file, self.settings, self.steps);
        let again = self.port.is_some();
        // Before workers are waited for, where it is known with what the run goes on.
        let known = !again && (self.resumed.is_none() || self.run.number.is_none());
        let at_first = if known { self.metrics()? } else { None };
        let workers = self.gather(recovery).await?;
        let mut boss = self.builder().build(workers)?;
        self.handle = Some(boss.handle.clone());
        self.run.microbatches = boss.settings.microbatches;
        boss.distribute_model().await?;
        self.find(&mut boss, again, recovery).await?;
        let mut metrics = if at_first.is_some() { at_first } else { self.metrics()? };
        let done = self.resumed.as_ref().map_or(0, |found| found.counters().step);
        let metrics_before = self.resumed.as_ref().map(|found| found.run().metrics.unwrap_or(0));
        if let Some(weights) = self.weights.as_ref().filter(|_| self.resumed.is_none()) {
            weights.load(&mut boss).await?;
        }
        boss.send_optimizer(file.optimizer).await?;
        // Whoever lacks a file says so now, not after the first epoch.
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
        let mut copies = None;
        if let (Redundancy::Neighbour(every), Some(run)) = (file.redundancy, self.run.number) {
            let from = self.resumed.as_ref().and_then(Found::kept);
            copies = Some(Copies::new(run, every, from));
        }
        if let Some(found) = self.resumed.take() {
            if done < steps && !settings.pool {
                // Stages find their places before they get what they go on with.
                let first = batches.next_batch().await?;
                boss.settle(&first).await?;
                next = Some(first);
            }
            found.restore(&mut boss).await?;
            progress.line(&format!("going on after step {done}, with {} of it", found.name()));
            best = found.run().best.map(|best| (best.step, best.score()));
        }
        if settings.pool {
            boss.open_pool().await?;
        }
        let mut writing = self.checkpoints.clone().map(|(checkpoints, policy)| Writing::new(checkpoints, policy));
        let mut epochs = Epochs::new(file, self.validation.clone(), settings.save.as_deref(), best);
        recovery.restored(&progress);
        let trained = async {
            for step in done + 1..=steps {
                let batch = match next.take() {
                    Some(first) => first,
                    None => batches.next_batch().await?,
                };
                let mut report = boss.train_step(&batch).await?;
                // Such a model has no word by which the step could know what counts samples.
                report.samples = self.fixed.as_ref().map_or(report.samples, |fixed| fixed.samples);
                progress.step(&report);
                recovery.done(step, &progress);
                on_step(&report);
                if let Some(metrics) = &mut metrics {
                    metrics.write(&report)?;
                }
                if settings.trace.is_some() {
                    self.traced.extend(boss.timelines().map(|timelines| (report.step, timelines)));
                    self.traced.drain(..self.traced.len().saturating_sub(TRACED));
                }
                if step.is_multiple_of(per_epoch) || step == steps {
                    epochs.end(&mut boss, step, step.div_ceil(per_epoch), &progress, metrics.as_mut()).await?;
                }
                if writing.is_some() || copies.is_some() {
                    let now = Run {
                        metrics: metrics.as_ref().map(Metrics::bytes).or(metrics_before),
                        best: epochs.best.as_ref().map(|(step, look)| Best::of(*step, &look.score)),
                        look: epochs.last.as_ref().map(|(step, score)| Best::of(*step, score)),
                        ..self.run.clone()
                    };
                    if let Some(copies) = copies.as_mut().filter(|_| step < steps) {
                        copies.after_step(&mut boss, step, &now, &progress).await;
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
        // Where a step fails, too, the checkpoint before it is written to its end: it is what the run goes on with.
        match writing {
            Some(mut writing) if trained.is_ok() => writing.take_note(&progress).await,
            Some(writing) => writing.end(&progress).await,
            None => {}
        }
        self.time += if trained.is_ok() { progress.end() } else { progress.abandon() };
        trained?;
        if let Some(path) = &settings.trace {
            Trace::of(&self.traced).save(path)?;
        }
        let test = match &self.test {
            Some(test) => Some(look_with_who_is_here(&mut boss, file, Part::Test, test).await?),
            None => None,
        };
        boss.shutdown().await;
        Ok(Outcome { steps, time: self.time, best: epochs.best, test })
    }
}

/// Whether a worker can have a neighbour that is there when it is not.
fn check_neighbours(settings: &Settings, workers: usize) -> Result<(), BossManError> {
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
