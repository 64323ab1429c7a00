//! What `bossman train` does, for programs that want the same.

use crate::data::{Batches, Dataset, Order, Source};
use crate::fleet::FleetSettings;
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::run_file::{Length, RunFile, Validation};
use crate::score::Score;
use crate::trace::Trace;
use crate::{BossMan, BossManError, Model, StateDict};
use std::path::PathBuf;
use std::time::Duration;

/// Samples in a batch where nothing is kept for backward.
const TEST_BATCH: u64 = 256;
/// Steps in a trace: the last ones.
const TRACED: usize = 8;

/// What the command line says beside the run file.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Which workers.
    pub fleet: FleetSettings,
    /// A line of JSON a step goes here.
    pub metrics: Option<PathBuf>,
    /// The timelines of the last steps go here.
    pub trace: Option<PathBuf>,
    /// Weights to start from.
    pub init: Option<PathBuf>,
    /// Where the final weights go.
    pub save: Option<PathBuf>,
    /// Take samples in the order of the file.
    pub no_shuffle: bool,
}

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Training steps done.
    pub steps: u64,
    /// Time spent in them.
    pub time: Duration,
    /// On the test data, where there is some.
    pub test: Option<Score>,
}

/// Trains as a run file says. Files, data and cuts are checked before any worker is waited for.
///
/// # Errors
/// Anything in the files, the workers or the network; see [`BossManError`].
pub async fn run(file: &RunFile, settings: &Settings) -> Result<Outcome, BossManError> {
    let model = Model::from_file(&file.model)?;
    for warning in model.graph().warnings() {
        eprintln!("warning: {}: {warning}", file.model.display());
    }
    let open =
        |source: &Source| Dataset::open(source, model.graph(), &file.loss, file.data.normalize.as_ref());
    let train = open(&file.data.train)?;
    let (train, validation) = match &file.data.validation {
        None => (train, None),
        Some(Validation::Source(source)) => (train, Some(open(source)?)),
        Some(Validation::Split(share)) => {
            let (train, validation) = train.split(*share, file.seed)?;
            (train, Some(validation))
        }
    };
    let test = file.data.test.as_ref().map(open).transpose()?;
    let init = init(file, settings, &model)?;
    let workers = settings.fleet.count(file)?;
    let builder = file.builder(model);
    builder.check(workers)?;
    if let Some(path) = &settings.save {
        StateDict::can_save(path)?;
    }
    let mut metrics = settings.metrics.as_deref().map(Metrics::create).transpose()?;
    let mut boss = builder.build(settings.fleet.host(workers).wait().await?)?;
    boss.distribute_model().await?;
    if let Some(init) = &init {
        boss.load_state_dict(init).await?;
    }
    boss.send_optimizer(file.optimizer).await?;

    let steps = steps(file, train.samples());
    let left = steps % u64::from(file.accumulate);
    if left > 0 {
        let accumulate = file.accumulate;
        eprintln!("warning: {steps} steps are no multiple of accumulate: {accumulate}; the last {left} change nothing");
    }
    let per_epoch = train.samples().div_ceil(file.batch_size);
    let seed = (!settings.no_shuffle).then_some(file.seed);
    let mut batches = Batches::new(train, file.batch_size, seed).ahead()?;
    let mut progress = Progress::start(steps);
    let mut traced = Vec::new();
    for step in 1..=steps {
        let report = boss.train_step(&batches.next_batch().await?).await?;
        progress.step(&report);
        if let Some(metrics) = &mut metrics {
            metrics.write(&report)?;
        }
        if settings.trace.is_some() {
            traced.extend(boss.timelines().map(|timelines| (report.step, timelines)));
            traced.drain(..traced.len().saturating_sub(TRACED));
        }
        let epoch_ends = step.is_multiple_of(per_epoch) || step == steps;
        if let Some(validation) = validation.as_ref().filter(|_| epoch_ends) {
            let score = score(&mut boss, validation, file).await?;
            progress.line(&format!("after step {step}: validation {score}"));
        }
    }
    let time = progress.end();
    if let Some(path) = &settings.trace {
        Trace::of(&traced).save(path)?;
    }
    if let Some(path) = &settings.save {
        boss.state_dict().await?.save(path)?;
    }
    let test = match &test {
        Some(test) => Some(score(&mut boss, test, file).await?),
        None => None,
    };
    boss.shutdown().await;
    Ok(Outcome { steps, time, test })
}

/// The weights to start from, those of the command line before those of the run file, checked against the model.
fn init(file: &RunFile, settings: &Settings, model: &Model) -> Result<Option<StateDict>, BossManError> {
    let found = match (&settings.init, &file.weights) {
        (Some(path), _) => StateDict::load(path)?,
        (None, Some(weights)) => weights.rename.apply(&StateDict::load(&weights.path)?, model)?,
        (None, None) => return Ok(None),
    };
    found.fitting(model.graph()).map(Some)
}

fn steps(file: &RunFile, samples: u64) -> u64 {
    match file.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => epochs.saturating_mul(samples.div_ceil(file.batch_size)),
    }
}

/// Runs the test data through the model in evaluation mode.
async fn score(boss: &mut BossMan, data: &Dataset, file: &RunFile) -> Result<Score, BossManError> {
    let order = Order::new(data.samples(), None, 0);
    // A model without a word for the batch takes batches of its one size only.
    let size = if boss.model().graph().batch().is_some() { TEST_BATCH } else { file.batch_size };
    let starts = (0..data.samples()).step_by(usize::try_from(size).unwrap_or(usize::MAX));
    Score::of(boss, starts.map(|start| data.batch(&order.at(start..start.saturating_add(size))))).await
}
