//! Continues a run after a loss of workers, from its last checkpoint or from peer snapshots.
//!
//! The remaining workers join again, and spares take the places of lost ones. The model is cut for
//! the workers that joined, and the steps since the state are repeated. Random draws and samples
//! depend only on the numbers of steps, and the result does not depend on the cut (law 1). So the
//! result equals that of a run without a loss.

use crate::output;
use crate::train::progress::Progress;
use crate::BossManError;
use pipeline::message::Failure;
use runtime::Handle;
use std::time::{Duration, Instant};

/// The most failures in a row without a new step. More end the run or the call, because the workers
/// are then not the cause.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

/// The state of recovery in a run.
#[derive(Default)]
pub(crate) struct Recovery {
    outage: Option<Outage>,
    /// The number of failures since the last new step.
    attempts: u32,
    /// The last completed step.
    last_new_step: u64,
}

/// The recovery in progress.
struct Outage {
    since: Instant,
    /// The times until workers had joined again, and until they had their state.
    rejoined_after: Duration,
    restored_after: Duration,
    /// The steps completed at the loss, and the number of them that are not repeated.
    done: u64,
    from: u64,
}

/// The error of a run without recovery, which may have checkpoints.
pub(crate) fn with_resume_advice(error: BossManError, checkpoints: bool) -> BossManError {
    match error {
        BossManError::Worker(failure) if failure.passing => {
            let advice = match checkpoints {
                true => "go on with --resume",
                false => "start the run again: with `checkpoint` in its run file it goes on by itself",
            };
            BossManError::Worker(Failure { message: format!("{}; {advice}", failure.message), ..failure })
        }
        other => other,
    }
}

/// Disconnects the worker that is unfit for its part, if the error names one, and tells it not to
/// join again.
pub(crate) fn evict_unfit(error: &BossManError, handle: &Handle) {
    if let BossManError::Worker(Failure { worker: Some(worker), unfit: true, message, .. }) = error {
        handle.evict(*worker, message);
    }
}

impl Recovery {
    /// Records a failure and reports it. Returns whether the run may continue. `others` tells
    /// whether the run has other workers.
    pub(crate) fn may_retry(&mut self, error: &BossManError, at: Instant, others: bool) -> bool {
        let passes = match error {
            BossManError::Worker(failure) => failure.passing || (failure.unfit && others),
            // A worker that was started in place of another one.
            BossManError::LocalWorkers(_) => self.outage.is_some(),
            _ => false,
        };
        if !passes || self.attempts == MAX_ATTEMPTS {
            return false;
        }
        self.attempts += 1;
        let done = self.last_new_step;
        output::warn(&format!("warning: workers were lost, with {done} steps done: {error}"));
        let since = self.outage.as_ref().map_or(at, |outage| outage.since);
        self.outage =
            Some(Outage { since, rejoined_after: Duration::ZERO, restored_after: Duration::ZERO, done, from: 0 });
        true
    }

    /// Records that workers have joined again.
    pub(crate) fn workers_rejoined(&mut self) {
        if let Some(outage) = &mut self.outage {
            outage.rejoined_after = outage.since.elapsed();
        }
    }

    /// Reports that the run resumes with `workers` workers of `at_first`, and from which state.
    pub(crate) fn report_resume(&mut self, workers: usize, at_first: usize, from: Option<(u64, &str)>) {
        let Some(outage) = &mut self.outage else { return };
        outage.from = from.map_or(0, |(step, _)| step);
        let state = match from {
            None => "from the beginning, for there is no whole checkpoint or copy".to_string(),
            Some((step, name)) => format!("from {name} of step {step}"),
        };
        output::warn(&format!("recovery: going on with {workers} of {at_first} workers, {state}"));
    }

    /// Records that workers have their state.
    pub(crate) fn state_restored(&mut self, progress: &Progress) {
        if let Some(outage) = &mut self.outage {
            outage.restored_after = outage.since.elapsed();
            let from = outage.from;
            self.report_if_caught_up(from, progress);
        }
    }

    /// Records a completed step.
    pub(crate) fn step_done(&mut self, step: u64, progress: &Progress) {
        if step > self.last_new_step {
            (self.last_new_step, self.attempts) = (step, 0);
        }
        self.report_if_caught_up(step, progress);
    }

    /// Reports the cost of the recovery, once the lost steps are repeated.
    fn report_if_caught_up(&mut self, step: u64, progress: &Progress) {
        let Some(outage) = self.outage.take_if(|outage| step >= outage.done) else { return };
        let all = outage.since.elapsed();
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        progress.line(&format!(
            "recovery: {} steps were done again; {} lost: {} until workers were here, {} for their state, {} for the steps",
            outage.done.saturating_sub(outage.from),
            seconds(all),
            seconds(outage.rejoined_after),
            seconds(outage.restored_after.saturating_sub(outage.rejoined_after)),
            seconds(all.saturating_sub(outage.restored_after))
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(passing: bool) -> BossManError {
        BossManError::Worker(Failure { passing, ..Failure::new("lost (it was tired)") })
    }

    #[test]
    fn a_run_goes_on_where_workers_are_lost_and_not_for_ever() {
        let (progress, now) = (Progress::start(9, 0, true), Instant::now());
        let mut recovery = Recovery::default();
        let ended = BossManError::LocalWorkers("it ended".into());
        for other in [lost(false), BossManError::Usage("no".into()), BossManError::LocalWorkers("it ended".into())] {
            assert!(!recovery.may_retry(&other, now, true));
        }
        recovery.step_done(4, &progress);
        for error in [lost(true), ended, lost(true)] {
            assert!(recovery.may_retry(&error, now, false));
            recovery.report_resume(1, 2, Some((2, "the checkpoint")));
            recovery.state_restored(&progress);
            // Repeated steps are no progress.
            recovery.step_done(3, &progress);
            assert!(recovery.outage.is_some());
        }
        assert!(!recovery.may_retry(&lost(true), now, true));
        recovery.step_done(4, &progress);
        assert!(recovery.outage.is_none() && !recovery.may_retry(&lost(true), now, true));
        recovery.step_done(5, &progress);
        assert!(recovery.may_retry(&lost(true), now, false));
        // No step has to be repeated.
        recovery.report_resume(2, 2, Some((5, "the checkpoint")));
        recovery.state_restored(&progress);
        assert!(recovery.outage.is_none());
        // Another worker may be fit for the part of an unfit one.
        let unfit = BossManError::Worker(Failure { unfit: true, ..Failure::new("out of memory") });
        assert!(!recovery.may_retry(&unfit, now, false) && recovery.may_retry(&unfit, now, true));
    }

    #[test]
    fn a_run_that_ends_is_told_what_would_have_helped() {
        let told = with_resume_advice(lost(true), false).to_string();
        assert!(told.starts_with("lost (it was tired); start the run again: with `checkpoint`"), "{told}");
        assert_eq!(with_resume_advice(lost(true), true).to_string(), "lost (it was tired); go on with --resume");
        assert!(!with_resume_advice(lost(false), false).to_string().contains("checkpoint"));
    }
}
