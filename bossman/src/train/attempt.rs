//! One session of a run: from the state to resume from to the last step, or to the first failure.

use super::prepared::Prepared;
use crate::checkpoint::{DueTimer, RunRecord, ScoreAtStep};
use crate::data::{Part, Prefetcher};
use crate::events::{Event, Events};
use crate::recovery::peer_snapshots::PeerSnapshots;
use crate::recovery::resume::ResumeState;
use crate::train::checkpoint_writer::{CheckpointWriter, StepEnd};
use crate::train::digests::Digests;
use crate::train::epochs::{validate_with_current_members, Epochs};
use crate::train::metrics::{Metrics, SharedMetrics};
use crate::train::settings::TrainOptions;
use crate::train::trace::TraceRecorder;
use crate::train::validation_result::ValidationResult;
use crate::{Batch, BossMan, BossManError, RecoverySource, StepReport};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The observers of a run.
#[derive(Clone)]
pub(super) struct Observers {
    pub(super) events: Events,
    /// The metrics, which are among the observers.
    pub(super) metrics: Option<SharedMetrics>,
}

impl Observers {
    /// The observers of the caller, the metrics and the trace.
    ///
    /// # Errors
    /// The metrics cannot be written, or are not those of the state to resume from.
    pub(super) fn open(
        options: &TrainOptions,
        resumed: Option<&ResumeState>,
    ) -> Result<Self, BossManError> {
        let mut events = options.events.clone();
        let mut metrics = None;
        if let Some(path) = &options.metrics {
            let bytes = resumed.and_then(|found| found.run().metrics).unwrap_or(0);
            let opened = Arc::new(Mutex::new(Metrics::open(path, bytes)?));
            events = events.with(opened.clone());
            metrics = Some(opened);
        }
        if let Some(path) = &options.trace {
            events = events.with(TraceRecorder::new(path.clone()));
        }
        Ok(Observers { events, metrics })
    }
}

/// A session at work.
pub(super) struct Attempt<'a> {
    prepared: &'a Prepared<'a>,
    pub(super) boss: BossMan,
    record: RunRecord,
    observers: Observers,
    started: Instant,
    batches: Prefetcher,
    /// The next batch, if it was read to choose the schedule.
    next: Option<Batch>,
    /// The steps before this session.
    pub(super) done: u64,
    /// Whether the state after them is only with the workers.
    is_from_peers: bool,
    pub(super) epochs: Epochs<'a>,
    checkpoints: Option<CheckpointWriter>,
    peer_snapshots: Option<PeerSnapshots>,
    /// `None` if the run has no folder.
    digests: Option<Digests>,
}

impl<'a> Attempt<'a> {
    /// Gives the workers of a new session their state, and opens the data.
    ///
    /// # Errors
    /// The state does not fit, a file cannot be read, or a worker failed.
    pub(super) async fn start(
        prepared: &'a Prepared<'a>,
        mut boss: BossMan,
        mut record: RunRecord,
        observers: Observers,
        resumed: Option<ResumeState>,
        due: Option<DueTimer>,
    ) -> Result<Self, BossManError> {
        let (file, options) = (prepared.file, prepared.options);
        let done = resumed.as_ref().map_or(0, |found| found.counters().step);
        boss.send_optimizer(file.optimizer).await?;
        // A worker that lacks a file fails now, not after the first epoch.
        let data = &prepared.data;
        for data in [Some(&data.train), data.validation.as_ref(), data.test.as_ref()] {
            if let Some(data) = data.filter(|data| data.id().is_some()) {
                boss.open_data(data).await?;
            }
        }
        let batches = file.batches(data.train.clone(), done);
        let best = resumed.as_ref().and_then(|found| found.run().best);
        let best = best.map(|best| (best.step, best.score()));
        let metrics_bytes = resumed.as_ref().and_then(|found| found.run().metrics);
        record.metrics = metrics_bytes;
        let Observers { events, metrics } = observers.clone();
        let checkpoints = match prepared.checkpoints.clone().zip(due) {
            Some(((checkpoints, policy), due)) => {
                let events = events.clone();
                Some(CheckpointWriter::open(checkpoints, policy, due, events, metrics).await?)
            }
            None => None,
        };
        let mut attempt = Attempt {
            boss,
            observers,
            started: Instant::now(),
            batches: batches.prefetch()?,
            next: None,
            done,
            is_from_peers: resumed.as_ref().and_then(ResumeState::peer_state).is_some(),
            epochs: Epochs::new(file, data.validation.clone(), options.save.as_deref(), best),
            checkpoints,
            digests: options.run_folder.as_ref().map(|_| Digests::new(events.clone())),
            peer_snapshots: match (file.redundancy, record.run_id) {
                (RecoverySource::PeerSnapshot(every), Some(run)) => {
                    let from = resumed.as_ref().and_then(ResumeState::peer_state);
                    Some(PeerSnapshots::new(run, every, from, events))
                }
                _ => None,
            },
            record,
            prepared,
        };
        let plan = match &resumed {
            Some(found) => attempt.restore(found).await?,
            None => attempt.load_weights().await?,
        };
        attempt.observers.events.emit(&Event::Started {
            steps: prepared.steps,
            done,
            from: resumed.as_ref().map(ResumeState::source),
            microbatches: attempt.record.microbatches,
            metrics_bytes: metrics_bytes.unwrap_or(0),
            pool: options.pool,
        })?;
        attempt.boss.trainer.report(plan);
        if options.pool {
            attempt.boss.open_pool().await?;
        }
        Ok(attempt)
    }

    /// Restores a state. Returns the plan, if one was made for it.
    async fn restore(&mut self, found: &ResumeState) -> Result<Option<Event>, BossManError> {
        let plan = self.place_stages().await?;
        found.restore(&mut self.boss).await?;
        Ok(plan)
    }

    /// Loads the weights to start from, if there are any. Returns the plan, if one was made for
    /// them.
    async fn load_weights(&mut self) -> Result<Option<Event>, BossManError> {
        let Some(weights) = &self.prepared.weights else { return Ok(None) };
        let plan = self.place_stages().await?;
        weights.load(&mut self.boss).await?;
        Ok(plan)
    }

    /// Chooses the schedule before stages load anything, which could not move then.
    async fn place_stages(&mut self) -> Result<Option<Event>, BossManError> {
        if self.done >= self.prepared.steps || self.prepared.options.pool {
            return Ok(None);
        }
        let first = self.batches.next_batch().await?;
        let shape = self.boss.trainer.batch_shape(&first)?;
        let plan = self.boss.trainer.choose_schedule(&shape).await?;
        self.next = Some(first);
        Ok(plan)
    }

    /// Trains one step.
    pub(super) async fn train_step(&mut self) -> Result<StepReport, BossManError> {
        let batch = match self.next.take() {
            Some(first) => first,
            None => self.batches.next_batch().await?,
        };
        let mut report = self.boss.train_step(&batch).await?;
        // Without a named batch dimension the step cannot count samples.
        let fixed = &self.prepared.fixed_batch;
        report.samples = fixed.as_ref().map_or(report.samples, |fixed| fixed.samples);
        let events = &self.observers.events;
        let timelines = events.want_timelines().then(|| self.boss.timelines()).flatten();
        events.emit(&Event::Step { report, timelines: timelines.map(Arc::new) })?;
        Ok(report)
    }

    /// Follows up a step: the end of an epoch, snapshots and checkpoints, in this order. A
    /// checkpoint counts the validation before it.
    pub(super) async fn after_step(&mut self, report: &StepReport) -> Result<(), BossManError> {
        let (step, steps) = (report.step, self.prepared.steps);
        let per_epoch = self.prepared.steps_per_epoch();
        let mut unsaved = None;
        if step.is_multiple_of(per_epoch) || step == steps {
            let (epoch, events) = (step.div_ceil(per_epoch), &self.observers.events);
            let is_last = step == steps;
            match self.epochs.end_epoch(&mut self.boss, step, epoch, is_last, events).await {
                // The last checkpoint may be on another disk.
                Err(error @ BossManError::File { .. }) if self.checkpoints.is_some() => {
                    unsaved = Some(error);
                }
                ended => ended?,
            }
        }
        self.store_state(step).await;
        unsaved.map_or(Ok(()), Err)
    }

    /// Makes the snapshots and checkpoints that are due after this step.
    async fn store_state(&mut self, step: u64) {
        let steps = self.prepared.steps;
        if let Some(digests) = &mut self.digests {
            digests.report_finished().await;
        }
        if self.checkpoints.is_none() && self.peer_snapshots.is_none() {
            return;
        }
        let record = self.record();
        if let Some(snapshots) = self.peer_snapshots.as_mut().filter(|_| step < steps) {
            snapshots.after_step(&mut self.boss, step, &record).await;
        }
        if let Some(writer) = &mut self.checkpoints {
            let end = StepEnd { step, is_last: step == steps, record };
            let began = writer.after_step(&mut self.boss, end).await;
            if let Some(digests) = self.digests.as_mut().filter(|_| began) {
                digests.begin(&mut self.boss, step).await;
            }
        }
    }

    /// The record of the run as it is now.
    fn record(&self) -> RunRecord {
        let best = self.epochs.best.as_ref();
        let metrics = self.observers.metrics.as_ref().map(|metrics| metrics.lock().bytes());
        RunRecord {
            metrics: metrics.or(self.record.metrics),
            best: best.map(|(step, validation)| ScoreAtStep::of(*step, &validation.score)),
            validation: self.epochs.last.as_ref().map(|(step, of)| ScoreAtStep::of(*step, of)),
            ..self.record.clone()
        }
    }

    /// Whether the run should stay in this session until a checkpoint is written. A session that
    /// ends gives it a short time. If the state is held as a checkpoint, that waits for it anyway.
    pub(super) fn is_writing_checkpoint(&self) -> bool {
        self.peer_snapshots.is_some()
            && self.checkpoints.as_ref().is_some_and(CheckpointWriter::is_better_left_alone)
    }

    /// Stores the state after this step, which the next session resumes from. The workers' memory
    /// is preferred, because then nothing travels through the boss. Returns whether it is stored.
    pub(super) async fn hold_state(&mut self, step: u64) -> bool {
        let record = self.record();
        let is_held = match (&mut self.peer_snapshots, &mut self.checkpoints) {
            (Some(snapshots), checkpoints) => {
                if let Some(writer) = checkpoints {
                    writer.wait_for_pending().await;
                }
                snapshots.finish(&mut self.boss, step, &record).await
            }
            (None, Some(writer)) => {
                let end = StepEnd { step, is_last: true, record };
                writer.finish(&mut self.boss, end).await
            }
            (None, None) => false,
        };
        if let Some(digests) = self.digests.as_mut().filter(|_| is_held) {
            digests.end(&mut self.boss, step).await;
        }
        is_held
    }

    /// All steps are done: waits for the last checkpoint and the last digest. Returns the time of
    /// the session.
    pub(super) async fn end(&mut self) -> Duration {
        if let Some(writer) = &mut self.checkpoints {
            writer.wait_for_pending().await;
        }
        if let Some(digests) = &mut self.digests {
            digests.end(&mut self.boss, self.prepared.steps).await;
        }
        self.started.elapsed()
    }

    /// The time of the session so far.
    pub(super) fn time(&self) -> Duration {
        self.started.elapsed()
    }

    /// The user ended the run after this step: saves what it has made. Errors cost what they name
    /// alone. `saved` is the step of the weights in the file. Returns the file, if it has those of
    /// this step.
    pub(super) async fn interrupt(&mut self, step: u64, saved: Option<u64>) -> Option<PathBuf> {
        // No step was done in this session, so there is nothing new.
        if step == self.done && !self.is_from_peers {
            return None;
        }
        let events = self.observers.events.clone();
        if let Some(later) = later_weights(saved, step) {
            let why = format!("because those of step {later} are");
            events.warn_at(step, format!("the weights of step {step} are not saved, {why}"));
        } else if self.epochs.saved != Some(step) {
            if let Err(error) = self.epochs.save_weights(&mut self.boss, step, &events).await {
                events.warn_at(step, format!("the weights of step {step} are not saved: {error}"));
            }
        }
        let is_saved = self.epochs.saved == Some(step);
        let record = self.record();
        if let Some(writer) = &mut self.checkpoints {
            let end = StepEnd { step, is_last: true, record };
            writer.finish(&mut self.boss, end).await;
        }
        // What is saved matters more, if the time for both is short.
        if let Some(digests) = &mut self.digests {
            digests.end(&mut self.boss, step).await;
        }
        self.prepared.options.save.clone().filter(|_| is_saved)
    }

    /// A step failed, or the run goes on with more workers. A checkpoint in progress is completed,
    /// because the run resumes from it.
    pub(super) async fn abandon(&mut self) -> Duration {
        let time = self.started.elapsed();
        if let Some(writer) = self.checkpoints.take() {
            writer.end().await;
        }
        time
    }

    /// Scores the final weights on the test data, if there is any.
    pub(super) async fn test(&mut self) -> Result<Option<ValidationResult>, BossManError> {
        let Some(test) = &self.prepared.data.test else { return Ok(None) };
        let file = self.prepared.file;
        let validation =
            validate_with_current_members(&mut self.boss, file, Part::Test, test).await?;
        self.observers.events.report(&Event::Tested { validation: validation.clone() });
        Ok(Some(validation))
    }
}

/// The step of the saved weights, if it is after this one. After a loss a run may end at an earlier
/// step than before, and the later weights are worth more.
fn later_weights(saved: Option<u64>, step: u64) -> Option<u64> {
    saved.filter(|saved| *saved > step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_set_back_keeps_its_later_weights() {
        assert_eq!(later_weights(None, 95), None);
        assert_eq!(later_weights(Some(90), 95), None);
        assert_eq!(later_weights(Some(95), 95), None);
        assert_eq!(later_weights(Some(100), 95), Some(100));
    }
}
