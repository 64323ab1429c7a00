//! The checkpoints of a run, made when they are due and written while training continues.

use crate::checkpoint::{begin_snapshot, rate, Checkpoints, DueTimer, MadeFor, Policy, RunRecord};
use crate::events::{CheckpointOutcome, Event, Events};
use crate::train::metrics::SharedMetrics;
use crate::{BossMan, BossManError};
use pipeline::StateForm;
use std::time::Duration;
use tokio::task::JoinHandle;
use tracing::info;

/// The time that a failed run waits for its last checkpoint.
const FINAL_WAIT: Duration = Duration::from_secs(60);
/// The time to delete the files of a checkpoint that was not written by then.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// A completed step.
pub(crate) struct StepEnd {
    pub(crate) step: u64,
    /// Whether it is the last step of the run.
    pub(crate) is_last: bool,
    pub(crate) record: RunRecord,
}

/// The checkpoints of a run.
pub(crate) struct CheckpointWriter {
    checkpoints: Checkpoints,
    policy: Policy,
    events: Events,
    /// The metrics that a checkpoint counts.
    metrics: Option<SharedMetrics>,
    due: DueTimer,
    /// Whether one is due that could not be made yet.
    overdue: bool,
    pending: Option<Pending>,
    /// The step of the last checkpoint that is whole.
    written: Option<u64>,
    /// The rate of the best checkpoint.
    best: Option<f64>,
    /// Whether the user was told that training waits for checkpoints.
    warned: bool,
}

/// A checkpoint that is being written.
struct Pending {
    step: u64,
    /// Its rate, if the best ones are kept.
    rate: Option<f64>,
    writing: JoinHandle<Result<(), BossManError>>,
}

impl CheckpointWriter {
    /// # Errors
    /// The folder of the checkpoints cannot be read.
    pub(crate) async fn open(
        checkpoints: Checkpoints,
        policy: Policy,
        due: DueTimer,
        events: Events,
        metrics: Option<SharedMetrics>,
    ) -> Result<Self, BossManError> {
        let best = match policy.keep_best {
            Some(by) => checkpoints.best_rate(by).await?,
            None => None,
        };
        Ok(CheckpointWriter {
            checkpoints,
            policy,
            events,
            metrics,
            due,
            overdue: false,
            pending: None,
            written: None,
            best,
            warned: false,
        })
    }

    /// Whether the session should go on until the checkpoint that is being written is whole, if it
    /// can. Not if checkpoints are made faster than they are written: then there is always one, and
    /// training waits for them in any case.
    pub(crate) fn is_better_left_alone(&self) -> bool {
        !self.warned && self.pending.as_ref().is_some_and(|one| !one.writing.is_finished())
    }

    /// Makes a checkpoint of this step, which ended the run or the session early, unless there is
    /// one or gradients are half accumulated. Returns whether it is written.
    pub(crate) async fn finish(&mut self, boss: &mut BossMan, end: StepEnd) -> bool {
        let step = end.step;
        self.wait_for_pending().await;
        // A new one would replace it, and a fault at that moment would cost both. An earlier
        // session may have written it, if this one resumed from a peer snapshot of the same step.
        if self.checkpoints.newest_known() == Some(step) {
            return true;
        }
        if self.written != Some(step) {
            self.after_step(boss, StepEnd { is_last: true, ..end }).await;
            self.wait_for_pending().await;
        }
        self.written == Some(step)
    }

    /// Makes a checkpoint after a step if one is due. Reports errors, and training continues.
    /// Returns whether it began one.
    pub(crate) async fn after_step(&mut self, boss: &mut BossMan, end: StepEnd) -> bool {
        let StepEnd { step, is_last, record } = end;
        let written = self.pending.as_ref().is_some_and(|pending| pending.writing.is_finished());
        if written {
            self.wait_for_pending().await;
        }
        self.overdue |= self.due.is_due(step) || is_last;
        let rate = self.policy.keep_best.and_then(|by| rate(&record, step, by));
        let made_for = match self.overdue {
            true => MadeFor::Resuming,
            false => MadeFor::Best,
        };
        let is_wanted = self.overdue || self.is_best(rate);
        if !is_wanted || !boss.trainer.position.is_between_updates() {
            return false;
        }
        // One is written at a time, so that no more than one is in memory.
        let waits = self.pending.as_ref().filter(|one| !one.writing.is_finished() && !is_last);
        if let Some(Pending { step: before, .. }) = waits.filter(|_| !self.warned) {
            self.report(step, CheckpointOutcome::Waits { before: *before });
            self.warned = true;
        }
        self.wait_for_pending().await;
        // The one before may have been better.
        if made_for == MadeFor::Best && !self.is_best(rate) {
            return false;
        }
        self.overdue = false;
        self.begin(boss, step, rate, RunRecord { made_for, ..record }).await;
        true
    }

    /// Whether a checkpoint of this rate is better than all before.
    fn is_best(&self, rate: Option<f64>) -> bool {
        rate.is_some_and(|rate| self.best.is_none_or(|best| rate > best))
    }

    async fn begin(&mut self, boss: &mut BossMan, step: u64, rate: Option<f64>, run: RunRecord) {
        info!(step, "checkpoint begins");
        let flush = self.metrics.as_ref().map(|metrics| metrics.lock().flush()).transpose();
        let begun = match flush {
            Ok(flush) => begin_snapshot(&mut boss.trainer, StateForm::Slices)
                .await
                .map(|snapshot| (snapshot, flush)),
            Err(error) => Err(error),
        };
        let (snapshot, flush) = match begun {
            Ok(begun) => begun,
            Err(error) => return self.report_failure(step, error.to_string()),
        };
        let (checkpoints, policy) = (self.checkpoints.clone(), self.policy.clone());
        let events = self.events.clone();
        let write = async move {
            // The disk must keep the metrics that the checkpoint counts.
            if let Some(flush) = flush {
                let flushed = tokio::task::spawn_blocking(flush).await;
                flushed
                    .map_err(|e| BossManError::Usage(format!("flushing the metrics: {e}")))??;
            }
            snapshot.write(&checkpoints, run).await?;
            if let Err(error) = checkpoints.prune(&policy, step).await {
                let text = format!("older checkpoints are not deleted after step {step}: {error}");
                events.warn_at(step, text);
            }
            Ok(())
        };
        self.pending = Some(Pending { step, rate, writing: tokio::spawn(write) });
    }

    /// Waits for the checkpoint that is being written.
    pub(crate) async fn wait_for_pending(&mut self) {
        let Some(Pending { step, rate, writing }) = &mut self.pending else { return };
        let (step, rate) = (*step, *rate);
        let problem = match writing.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        self.pending = None;
        info!(step, problem, "checkpoint ends");
        match problem {
            None => {
                self.written = Some(step);
                if self.is_best(rate) {
                    self.best = rate;
                }
                self.report(step, CheckpointOutcome::Written);
            }
            Some(problem) => self.report_failure(step, problem),
        }
    }

    fn report(&self, step: u64, outcome: CheckpointOutcome) {
        self.events.report(&Event::Checkpoint { step, outcome });
    }

    fn report_failure(&self, step: u64, why: String) {
        self.report(step, CheckpointOutcome::Failed { why });
    }

    /// Waits for it, but only for a short time, because the caller waits for the end of the run.
    pub(crate) async fn end(mut self) {
        if tokio::time::timeout(FINAL_WAIT, self.wait_for_pending()).await.is_ok() {
            return;
        }
        let Some(Pending { step, writing, .. }) = self.pending.take() else { return };
        writing.abort();
        // Until then it may write.
        writing.await.ok();
        let late = format!("it was not written within {} s", FINAL_WAIT.as_secs());
        let cleared = tokio::time::timeout(CLEANUP_TIMEOUT, self.checkpoints.clear(step)).await;
        match cleared {
            Ok(Ok(false)) => self.report(step, CheckpointOutcome::Written),
            Ok(Ok(true)) => self.report_failure(step, late),
            Ok(Err(error)) => self.report_failure(step, format!("{late}; {error}")),
            Err(_) => self.report_failure(step, format!("{late}, and its files are left")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Every;

    #[tokio::test]
    async fn a_checkpoint_that_is_being_written_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(folder.path().to_str().unwrap(), true).unwrap();
        let every = Every::Steps(1);
        let policy = Policy { dir: None, every, keep: 2, keep_best: None, audit: 0 };
        let (due, events) = (DueTimer::start(policy.every), Events::default());
        let opened = CheckpointWriter::open(checkpoints, policy, due, events, None).await;
        let mut writer = opened.unwrap();
        assert!(!writer.is_better_left_alone());
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let writing = tokio::spawn(async move {
            ended.await.ok();
            Ok(())
        });
        writer.pending = Some(Pending { step: 3, rate: None, writing });
        assert!(writer.is_better_left_alone());
        // Training waits for checkpoints, so the next one would begin as soon as this one ends.
        writer.warned = true;
        assert!(!writer.is_better_left_alone());
        writer.warned = false;
        end.send(()).unwrap();
        writer.wait_for_pending().await;
        assert!(!writer.is_better_left_alone());
        assert_eq!(writer.written, Some(3));
    }
}
