//! What `bossman train` does: data in, steps, a look at the model after each epoch, and out come metrics, weights and a test.

use crate::checkpoint::{Best, Checkpoints, KeepBest, Run, State, Writing};
use crate::data::{Batches, Part, Parts};
use crate::epochs::{best_path, look_with_who_is_here, Epochs};
use crate::fixed_batch::FixedBatch;
use crate::fleet::FleetSettings;
use crate::look::Look;
use crate::metrics::Metrics;
use crate::output;
use crate::progress::Progress;
use crate::run_file::{Length, RunFile};
use crate::trace::Trace;
use crate::translate::Translator;
use crate::{BossManError, Model, Replicas, StateDict, StepReport};
use std::path::PathBuf;
use std::time::Duration;

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
    /// Weights to start from.
    pub weights: Option<PathBuf>,
    /// Where weights go after each epoch; those of the best one go beside them, to [`crate::best_path`].
    pub save: Option<PathBuf>,
    /// Go on with a checkpoint of the run: the last, or that of this name.
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

/// The same, and after every step `on_step` is told how it went.
///
/// # Errors
/// As for [`run`].
pub async fn run_with(
    file: &RunFile,
    settings: &Settings,
    mut on_step: impl FnMut(&StepReport),
) -> Result<Outcome, BossManError> {
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
    let (mut writing, resumed) = checkpoints(file, settings, &run).await?;
    let weights = match &resumed {
        // That they fit is known before any worker is waited for.
        Some((state, _)) => state.weights.fitting(model.graph()).map(|_| None)?,
        None => file.initial(settings.weights.as_deref(), &model)?,
    };
    if let (Some(_), Some(texts)) = (&file.translate, file.pairs(Part::Train)) {
        Translator::new(&model, texts)?;
    }
    let workers = match settings.pool {
        true => settings.fleet.at_first(file),
        false => settings.fleet.count(file)?,
    };
    let mut builder = file.builder(model);
    if settings.pool {
        builder = builder.replicas(file.replicas.clone().unwrap_or(Replicas::Of(vec![workers as u16])));
        if file.microbatches == 0 {
            builder = builder.microbatches(MICROBATCHES_OF_POOL);
        }
    }
    if let Some((_, before)) = &resumed {
        // Where nothing is said they depend on how many workers there were.
        builder = builder.microbatches(before.microbatches);
    }
    builder.check(workers)?;
    if let Some(path) = &settings.save {
        StateDict::can_save(path)?;
        StateDict::can_save(&best_path(path))?;
    }
    settings.trace.as_deref().map_or(Ok(()), Trace::can_save)?;
    let done = resumed.as_ref().map_or(0, |(state, _)| state.counters.step);
    let metrics_before = resumed.as_ref().map(|(_, run)| run.metrics.unwrap_or(0));
    let metrics = settings.metrics.as_deref();
    let opened = metrics.map(|path| match metrics_before {
        Some(bytes) if bytes > 0 => Metrics::resume(path, bytes),
        _ => Metrics::create(path),
    });
    let mut metrics = opened.transpose()?;
    let host = settings.fleet.host_of(workers, file).on_stderr(settings.quiet).open(settings.pool);
    let mut boss = builder.build(host.wait().await?)?;
    run.microbatches = boss.settings.microbatches;
    boss.distribute_model().await?;
    if let Some(weights) = weights {
        weights.load(&mut boss).await?;
    }
    boss.send_optimizer(file.optimizer).await?;
    // Whoever lacks a file says so now, not after the first epoch.
    for data in [Some(&train), validation.as_ref(), test.as_ref()].into_iter().flatten() {
        if data.id().is_some() {
            boss.open_data(data).await?;
        }
    }
    let seed = (!settings.no_shuffle).then_some(file.seed);
    let per_epoch = train.samples().div_ceil(file.batch_size);
    let batches = Batches::after(train, file.batch_size, seed, done).grouped_by_length(file.group_by_length);
    let mut batches = batches.ahead()?;
    let mut next = None;
    let mut best = None;
    if let Some((state, run)) = resumed {
        if done < steps && !settings.pool {
            // Stages find their places before they get what they go on with.
            let first = batches.next_batch().await?;
            boss.settle(&first).await?;
            next = Some(first);
        }
        boss.restore(&state).await?;
        best = run.best.map(|best| (best.step, best.score()));
    }
    if settings.pool {
        boss.open_pool().await?;
    }

    let left = steps % u64::from(file.accumulate);
    if left > 0 {
        let accumulate = file.accumulate;
        output::warn(&format!(
            "warning: {steps} steps are no multiple of accumulate: {accumulate}; the last {left} change nothing"
        ));
    }
    let mut epochs = Epochs::new(file, validation, settings.save.as_deref(), best);
    let mut progress = Progress::start(steps, done, settings.quiet);
    if done > 0 {
        progress.line(&format!("going on after step {done}, with the checkpoint of it"));
    }
    let mut traced = Vec::new();
    let trained = async {
        for step in done + 1..=steps {
            let batch = match next.take() {
                Some(first) => first,
                None => batches.next_batch().await?,
            };
            let mut report = boss.train_step(&batch).await?;
            // Such a model has no word by which the step could know what counts samples.
            report.samples = fixed.as_ref().map_or(report.samples, |fixed| fixed.samples);
            progress.step(&report);
            on_step(&report);
            if let Some(metrics) = &mut metrics {
                metrics.write(&report)?;
            }
            if settings.trace.is_some() {
                traced.extend(boss.timelines().map(|timelines| (report.step, timelines)));
                traced.drain(..traced.len().saturating_sub(TRACED));
            }
            if step.is_multiple_of(per_epoch) || step == steps {
                epochs.end(&mut boss, step, step.div_ceil(per_epoch), &progress, metrics.as_mut()).await?;
            }
            if let Some(writing) = &mut writing {
                let now = Run {
                    metrics: metrics.as_ref().map(Metrics::bytes).or(metrics_before),
                    best: epochs.best.as_ref().map(|(step, look)| Best::of(*step, &look.score)),
                    look: epochs.last.as_ref().map(|(step, score)| Best::of(*step, score)),
                    ..run.clone()
                };
                let looked = epochs.last.is_some_and(|(of, _)| of == step);
                let ended = (step == steps, looked);
                writing.after_step(&mut boss, step, ended, (now, metrics.as_ref()), &progress).await;
            }
        }
        Ok::<_, BossManError>(())
    };
    let trained = trained.await;
    // Where a step fails, too, the checkpoint before it is written to its end: it is what the run goes on with.
    if let Some(writing) = &mut writing {
        writing.take_note(&progress).await;
    }
    trained?;
    let time = progress.end();
    if let Some(path) = &settings.trace {
        Trace::of(&traced).save(path)?;
    }
    let test = match &test {
        Some(test) => Some(look_with_who_is_here(&mut boss, file, Part::Test, test).await?),
        None => None,
    };
    boss.shutdown().await;
    Ok(Outcome { steps, time, best: epochs.best, test })
}

/// What makes the run's checkpoints, and the one that it goes on with.
async fn checkpoints(
    file: &RunFile,
    settings: &Settings,
    run: &Run,
) -> Result<(Option<Writing>, Option<(State, Run)>), BossManError> {
    let Some(policy) = &file.checkpoint else {
        return match settings.resume {
            Some(_) => Err(BossManError::Usage(
                "--resume: the run file does not say where checkpoints are; set `checkpoint: {dir: .., every: ..}`"
                    .into(),
            )),
            None => Ok((None, None)),
        };
    };
    if policy.keep_best.is_some() && file.data.validation.is_none() {
        return Err(BossManError::Usage(
            "`keep_best`: the run's `data` has no `validation` to tell the best by".into(),
        ));
    }
    if policy.keep_best == Some(KeepBest::Accuracy) && file.loss.classes().is_none() {
        return Err(BossManError::Usage(format!("`keep_best: accuracy`: {} knows no classes; take `loss`", file.loss)));
    }
    let checkpoints = Checkpoints::open(&policy.dir, settings.resume.is_none())?;
    let writing = || Some(Writing::new(checkpoints.clone(), policy.clone()));
    let Some(name) = &settings.resume else {
        // Else it could not be told later which checkpoint is of which run.
        let listed = checkpoints.list().await?;
        return match listed.iter().rfind(|listed| !listed.is_begun) {
            Some(last) => Err(BossManError::Usage(format!(
                "{}: holds checkpoints of a run up to step {}; --resume goes on with it; else name another folder",
                policy.dir, last.step
            ))),
            None => Ok((writing(), None)),
        };
    };
    let (state, manifest) = checkpoints.resume(name.as_deref()).await?;
    let microbatches = if file.microbatches == 0 { manifest.run.microbatches } else { file.microbatches };
    if let Some(problem) = manifest.run.differs(&Run { microbatches, ..run.clone() }) {
        return Err(BossManError::Usage(format!(
            "--resume: {problem}, so the run would not go on as it was; restore that, or begin anew in another folder"
        )));
    }
    Ok((writing(), Some((state, manifest.run))))
}

fn steps(file: &RunFile, samples: u64) -> u64 {
    match file.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => epochs.saturating_mul(samples.div_ceil(file.batch_size)),
    }
}
