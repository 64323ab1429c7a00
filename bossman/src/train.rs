//! What `bossman train` does: data in, steps, a look at the model after each epoch, and out come metrics, weights and a test.

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
    let weights = file.initial(settings.weights.as_deref(), &model)?;
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
    builder.check(workers)?;
    if let Some(path) = &settings.save {
        StateDict::can_save(path)?;
        StateDict::can_save(&best_path(path))?;
    }
    settings.trace.as_deref().map_or(Ok(()), Trace::can_save)?;
    let mut metrics = settings.metrics.as_deref().map(Metrics::create).transpose()?;
    let host = settings.fleet.host(workers, file).on_stderr(settings.quiet).open(settings.pool);
    let mut boss = builder.build(host.wait().await?)?;
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
    let per_epoch = train.samples().div_ceil(file.batch_size);
    let seed = (!settings.no_shuffle).then_some(file.seed);
    let mut batches = Batches::new(train, file.batch_size, seed).grouped_by_length(file.group_by_length).ahead()?;
    let mut epochs = Epochs::new(file, validation, settings.save.as_deref());
    let mut progress = Progress::start(steps, settings.quiet);
    let mut traced = Vec::new();
    for step in 1..=steps {
        let mut report = boss.train_step(&batches.next_batch().await?).await?;
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
    }
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

fn steps(file: &RunFile, samples: u64) -> u64 {
    match file.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => epochs.saturating_mul(samples.div_ceil(file.batch_size)),
    }
}
