//! What `bossman train` does, for programs that want the same.

use crate::data::{order, Dataset};
use crate::fleet::FleetSettings;
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::run_file::{Length, RunFile};
use crate::score::Score;
use crate::trace::Trace;
use crate::{Batch, BossMan, BossManError, Model, StateDict};
use std::path::PathBuf;
use std::time::Duration;

/// Samples in a batch where nothing is kept for backward.
const TEST_BATCH: usize = 256;
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
    let train = Dataset::read(&file.train, model.graph(), &file.loss)?;
    let test = file.test.as_ref().map(|path| Dataset::read(path, model.graph(), &file.loss)).transpose()?;
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
    let mut batches = Batches::new(&train, file, settings);
    let mut progress = Progress::start(steps);
    let mut traced = Vec::new();
    for _ in 0..steps {
        let report = boss.train_step(&batches.next()?).await?;
        progress.step(&report);
        if let Some(metrics) = &mut metrics {
            metrics.write(&report)?;
        }
        if settings.trace.is_some() {
            traced.extend(boss.timelines().map(|timelines| (report.step, timelines)));
            traced.drain(..traced.len().saturating_sub(TRACED));
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

/// Batches, epoch after epoch; the last one of an epoch may be smaller.
struct Batches<'a> {
    data: &'a Dataset,
    size: usize,
    seed: Option<u64>,
    epoch: u64,
    order: Vec<i64>,
    next: usize,
}

impl<'a> Batches<'a> {
    fn new(data: &'a Dataset, file: &RunFile, settings: &Settings) -> Self {
        let seed = (!settings.no_shuffle).then_some(file.seed);
        let size = usize::try_from(file.batch_size).unwrap_or(usize::MAX);
        Batches { data, size, seed, epoch: 0, order: order(data.samples(), seed, 0), next: 0 }
    }

    fn next(&mut self) -> Result<Batch, BossManError> {
        if self.next == self.order.len() {
            self.epoch += 1;
            self.order = order(self.data.samples(), self.seed, self.epoch);
            self.next = 0;
        }
        let end = self.next.saturating_add(self.size).min(self.order.len());
        let batch = self.data.batch(&self.order[self.next..end]);
        self.next = end;
        batch
    }
}

/// Runs the test data through the model in evaluation mode.
async fn score(boss: &mut BossMan, data: &Dataset, file: &RunFile) -> Result<Score, BossManError> {
    let numbers = order(data.samples(), None, 0);
    // A model without a word for the batch takes batches of its one size only.
    let fixed = usize::try_from(file.batch_size).unwrap_or(usize::MAX);
    let size = if boss.model().graph().batch().is_some() { TEST_BATCH } else { fixed };
    Score::of(boss, numbers.chunks(size).map(|numbers| data.batch(numbers))).await
}
