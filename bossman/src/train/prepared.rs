//! Everything about a run that does not need workers, read and checked before any joins.

use crate::check::lone_samples::{self, Batches};
use crate::checkpoint::{Checkpoints, Policy, RunRecord};
use crate::data::fixed_batch::FixedBatch;
use crate::data::Part;
use crate::inference::translate::Translator;
use crate::recovery::peer_snapshots::random_id;
use crate::recovery::resume::{self, ResumeState};
use crate::run_file::data_parts::Parts;
use crate::run_file::RunFile;
use crate::settings::conflicts::{self, PoolFacts, RunFacts};
use crate::settings::strategy::Strategy;
use crate::train::epochs::best_path;
use crate::train::memory_saving::{MeansLeft, MemorySaving};
use crate::train::settings::TrainOptions;
use crate::train::trace::Trace;
use crate::tuning::known_times::KnownTimes;
use crate::weights::initial_weights::InitialWeights;
use crate::{
    BossManError, Builder, Collective, Cuts, Model, Recompute, RecoverySource, Replicas, StateDict,
};
use link::WorkerInfo;

/// The default number of microbatches in a pool, which is also the most workers that can share a
/// batch.
const POOL_MICROBATCHES: u32 = 8;

/// The warning about a run that a worker on another machine can end.
pub(super) const NO_CHECKPOINT: &str =
    "a lost worker ends this run, because the run file has no `checkpoint`; for example \
     `checkpoint: {every: {minutes: 10}}` lets it go on";

/// A checked run. It never changes.
pub(super) struct Prepared<'a> {
    pub(super) file: &'a RunFile,
    pub(super) options: &'a TrainOptions,
    model: Model,
    pub(super) data: Parts,
    pub(super) steps: u64,
    pub(super) fixed_batch: Option<FixedBatch>,
    pub(super) checkpoints: Option<(Checkpoints, Policy)>,
    /// The weights to start from.
    pub(super) weights: Option<InitialWeights>,
    /// The initial number of workers.
    pub(super) workers: usize,
    /// Whether the run resumes a run of an earlier process.
    pub(super) is_resumed: bool,
    known_times: KnownTimes,
}

/// The record and the state with which a prepared run starts.
pub(super) struct Start {
    pub(super) record: RunRecord,
    pub(super) state: Option<ResumeState>,
}

/// Reads and checks everything that does not need workers.
pub(super) async fn prepare<'a>(
    file: &'a RunFile,
    options: &'a TrainOptions,
) -> Result<(Prepared<'a>, Start), BossManError> {
    let workers = match options.pool {
        true => options.fleet.initial_worker_count(file),
        false => options.fleet.worker_count(file)?,
    };
    resume::check_weights_or_resume(options)?;
    let model = Model::from_file(&file.model)?;
    for warning in model.graph().warnings() {
        options.events.warn(warning.to_string());
    }
    let data = file.checked_parts(&model)?;
    let steps = file.training_steps(data.train.samples())?;
    let fixed_batch = FixedBatch::of(model.graph());
    if let Some(fixed) = &fixed_batch {
        check_fixed_batch(fixed, file, options, &data)?;
    }
    let mut record = record(file, &data)?;
    let (checkpoints, state) = resume::open_checkpoints(file, options, &record).await?;
    if let (Some(_), Some(texts)) = (&file.translate, file.pairs(Part::Train)) {
        Translator::new(&model, texts)?;
    }
    let weights = match &state {
        // Weights are checked against the model before the run waits for workers.
        Some(ResumeState::Checkpoint(state, _)) => {
            state.check(model.graph(), &file.optimizer).map(|()| None)?
        }
        _ => file.initial_weights(options.weights.as_deref(), &model)?,
    };
    if let Some(done) = state.as_ref().map(|state| state.counters().step) {
        check_length(done, steps)?;
    }
    let before = state.as_ref().map(ResumeState::run);
    if let RecoverySource::PeerSnapshot(_) = file.redundancy {
        record.run_id = before.and_then(|run| run.run_id).or_else(|| Some(random_id()));
    }
    record.microbatches = before.map_or(record.microbatches, |run| run.microbatches);
    let is_resumed = state.is_some();
    let prepared = Prepared {
        file,
        options,
        model,
        data,
        steps,
        fixed_batch,
        checkpoints,
        weights,
        workers,
        is_resumed,
        known_times: KnownTimes::default(),
    };
    prepared.check(&record)?;
    Ok((prepared, Start { record, state }))
}

impl Prepared<'_> {
    /// Whether the loss of a worker on another machine ends the run. Only the user may know that
    /// these machines stay.
    pub(super) fn ends_with_a_remote_worker(&self) -> bool {
        let recovers = self.options.pool || self.checkpoints.is_some();
        !recovers
            && self.file.redundancy == RecoverySource::None
            && self.workers > self.options.fleet.local
    }

    /// Whether late workers are taken in: a run that ends with a loss never has fewer, and a pool
    /// takes them in without a new session.
    pub(super) fn may_grow(&self) -> bool {
        !self.options.pool && self.may_recover()
    }

    /// Whether the run goes on in a new session after a loss, a pool after that of its state.
    pub(super) fn may_recover(&self) -> bool {
        self.file.redundancy != RecoverySource::None
    }

    /// The settings of a session with this number of microbatches, or with the default for 0.
    pub(super) fn builder(&self, microbatches: u32, saving: MemorySaving) -> Builder {
        let (file, pool) = (self.file, self.options.pool);
        let mut model = self.model.clone();
        // The run file's setting, which follows, changes only what is not set yet.
        model.set_recompute(saving.recompute);
        let mut builder =
            file.builder(model).shortages(saving.shortages).known_times(self.known_times.clone());
        if pool {
            builder = builder.collective(Collective::Quic);
            builder = builder
                .replicas(file.replicas.clone().unwrap_or(Replicas::Of(vec![self.workers as u16])));
        }
        match microbatches {
            0 if pool => builder.microbatches(POOL_MICROBATCHES),
            microbatches => builder.microbatches(microbatches),
        }
    }

    /// The means to save memory that are left after a session on these workers that saved it thus.
    pub(super) fn means_left(&self, saving: MemorySaving, workers: &[WorkerInfo]) -> MeansLeft {
        let mut layers = self.model.graph().layers().iter();
        let stores = layers.any(|layer| layer.recompute.is_none());
        MeansLeft {
            recompute: saving.recompute != Recompute::Full && stores,
            plan: self.plan_changes(saving, workers),
        }
    }

    /// Whether the model would be cut otherwise after one more shortage.
    fn plan_changes(&self, saving: MemorySaving, workers: &[WorkerInfo]) -> bool {
        let stages = |shortages| {
            let builder = self.builder(0, MemorySaving { shortages, ..saving });
            builder.plan_on(workers).ok().map(|plan| plan.stages)
        };
        self.file.cuts == Cuts::Auto && stages(saving.shortages) != stages(saving.shortages + 1)
    }

    /// The steps of an epoch.
    pub(super) fn steps_per_epoch(&self) -> u64 {
        self.data.train.samples().div_ceil(self.file.batch_size)
    }

    /// Checks what would otherwise fail after workers have joined, or at the end.
    fn check(&self, record: &RunRecord) -> Result<(), BossManError> {
        let (file, options, steps) = (self.file, self.options, self.steps);
        let builder = self.builder(record.microbatches, MemorySaving::of(file.recompute));
        let plan = builder.plan(self.workers)?;
        let mut facts = builder.settings().facts();
        facts.collective = file.collective;
        facts.run = RunFacts {
            peer_snapshots: matches!(file.redundancy, RecoverySource::PeerSnapshot(_)),
            workers: Some(self.workers),
            has_local_workers: options.fleet.local > 0,
            // --no-shuffle may contradict the run file.
            groups_by_length: file.group_by_length,
            trains_on_pairs: file.group_by_length,
            shuffles: file.shuffle,
            ..RunFacts::default()
        };
        if options.pool {
            facts.pool = PoolFacts::of(&plan);
        }
        conflicts::check(&facts)?;
        if let Some(path) = &options.save {
            StateDict::can_save(path)?;
            StateDict::can_save(&best_path(path))?;
        }
        options.trace.as_deref().map_or(Ok(()), Trace::can_save)?;
        let (batch_size, samples) = (file.batch_size, self.data.train.samples());
        let graph = self.model.graph();
        let strategy = Strategy::new(builder.settings(), graph, self.workers);
        let microbatches = strategy.microbatches.into();
        lone_samples::check(graph, Batches { samples, batch_size, microbatches, steps })?;
        let warnings = file.length_warnings(samples)?;
        warnings.into_iter().for_each(|text| options.events.warn(text));
        Ok(())
    }
}

/// Checks that a run that resumes after `done` steps does not end before.
fn check_length(done: u64, steps: u64) -> Result<(), BossManError> {
    match done > steps {
        true => Err(BossManError::Usage(format!(
            "--resume: the checkpoint is of step {done}, but the run ends with step {steps}; raise \
             `steps` or `epochs`, or delete the later checkpoints with `bossman checkpoint prune \
             --after` and resume from an earlier one"
        ))),
        false => Ok(()),
    }
}

/// Checks that every batch has the one size that the model takes.
fn check_fixed_batch(
    fixed: &FixedBatch,
    file: &RunFile,
    options: &TrainOptions,
    data: &Parts,
) -> Result<(), BossManError> {
    let samples = data.train.samples();
    fixed.check_run(file, samples, file.training_steps(samples)?)?;
    if options.pool {
        fixed.check_pool()?;
    }
    for (what, part) in [("the validation data", &data.validation), ("the test data", &data.test)] {
        part.as_ref().map_or(Ok(()), |part| fixed.check_divisible(what, part.samples()))?;
    }
    Ok(())
}

/// The record of a new run.
fn record(file: &RunFile, data: &Parts) -> Result<RunRecord, BossManError> {
    Ok(RunRecord {
        seed: file.seed,
        optimizer: file.optimizer.name().into(),
        shuffled: file.shuffle,
        group_by_length: file.group_by_length,
        batch_size: file.batch_size,
        microbatches: file.microbatches,
        accumulate: file.accumulate,
        samples: data.train.samples(),
        classes: file.data()?.train.class_names()?,
        ..RunRecord::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Counters, TrainingState};
    use crate::run_file::test_picture::picture;

    const MODEL: &str = "{inputs: {x: [batch, 3]}, layers: [Linear: {in_features: 3, \
                         out_features: 2}]}";
    const RUN: &str = "model: m.yaml\ndata: {train: t}\nloss: CrossEntropyLoss\noptimizer: SGD\n\
                       batch_size: 1\nsteps: 2\ncheckpoint: {dir: c, every: {steps: 1}}\n";

    /// The number of samples is as it was, so only the names tell that the labels are others.
    #[tokio::test]
    async fn a_run_with_a_renamed_class_does_not_resume() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        std::fs::write(folder.join("m.yaml"), MODEL).unwrap();
        std::fs::write(folder.join("run.yaml"), RUN).unwrap();
        ["t/cat/1.png", "t/dog/1.png"].iter().for_each(|name| picture(folder, name));
        let run = || {
            let run = RunFile::from_file(folder.join("run.yaml")).unwrap().learned().unwrap();
            let data = run.parts(&Model::from_yaml(MODEL).unwrap()).unwrap();
            let record = record(&run, &data).unwrap();
            (run, record)
        };
        let counters = Counters { step: 1, updates: 1, loss_scale: None };
        let (weights, optimizer) = (StateDict::default(), Default::default());
        let state = TrainingState { weights, optimizer, counters };
        let checkpoints = Checkpoints::open(folder.join("c").to_str().unwrap(), true).unwrap();
        checkpoints.write(state, run().1).await.unwrap();
        let options = TrainOptions { resume: Some(None), ..TrainOptions::default() };
        let (file, before) = run();
        assert!(resume::open_checkpoints(&file, &options, &before).await.is_ok());
        std::fs::rename(folder.join("t/dog"), folder.join("t/a_dog")).unwrap();
        let (file, now) = run();
        let error = resume::open_checkpoints(&file, &options, &now).await.err().unwrap();
        let expected = "--resume: class 0 was `cat` and is `a_dog`, so the run would not go on";
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
