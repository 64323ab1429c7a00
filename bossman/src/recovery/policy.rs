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
    lost: Option<Lost>,
    /// The number of failures since the last new step.
    attempts: u32,
    /// The last completed step.
    furthest: u64,
}

/// The recovery in progress.
struct Lost {
    since: Instant,
    /// The times until workers had joined again, and until they had their state.
    here: Duration,
    restored: Duration,
    /// The steps completed at the loss, and the number of them that are not repeated.
    done: u64,
    from: u64,
}

/// The error of a run without recovery, which may have checkpoints.
pub(crate) fn ended(error: BossManError, checkpoints: bool) -> BossManError {
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
    pub(crate) fn may_go_on(&mut self, error: &BossManError, at: Instant, others: bool) -> bool {
        let passes = match error {
            BossManError::Worker(failure) => failure.passing || (failure.unfit && others),
            // A worker that was started in place of another one.
            BossManError::LocalWorkers(_) => self.lost.is_some(),
            _ => false,
        };
        if !passes || self.attempts == MAX_ATTEMPTS {
            return false;
        }
        self.attempts += 1;
        let done = self.furthest;
        output::warn(&format!("warning: workers were lost, with {done} steps done: {error}"));
        let since = self.lost.as_ref().map_or(at, |lost| lost.since);
        self.lost = Some(Lost { since, here: Duration::ZERO, restored: Duration::ZERO, done, from: 0 });
        true
    }

    /// Records that workers have joined again.
    pub(crate) fn here(&mut self) {
        if let Some(lost) = &mut self.lost {
            lost.here = lost.since.elapsed();
        }
    }

    /// Reports that the run resumes with `workers` workers of `at_first`, and from which state.
    pub(crate) fn goes_on(&mut self, workers: usize, at_first: usize, from: Option<(u64, &str)>) {
        let Some(lost) = &mut self.lost else { return };
        lost.from = from.map_or(0, |(step, _)| step);
        let state = match from {
            None => "from the beginning, for there is no whole checkpoint or copy".to_string(),
            Some((step, name)) => format!("from {name} of step {step}"),
        };
        output::warn(&format!("recovery: going on with {workers} of {at_first} workers, {state}"));
    }

    /// Records that workers have their state.
    pub(crate) fn restored(&mut self, progress: &Progress) {
        if let Some(lost) = &mut self.lost {
            lost.restored = lost.since.elapsed();
            let from = lost.from;
            self.tell(from, progress);
        }
    }

    /// Records a completed step.
    pub(crate) fn done(&mut self, step: u64, progress: &Progress) {
        if step > self.furthest {
            (self.furthest, self.attempts) = (step, 0);
        }
        self.tell(step, progress);
    }

    /// Reports the cost of the recovery, once the lost steps are repeated.
    fn tell(&mut self, step: u64, progress: &Progress) {
        let Some(lost) = self.lost.take_if(|lost| step >= lost.done) else { return };
        let all = lost.since.elapsed();
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        progress.line(&format!(
            "recovery: {} steps were done again; {} lost: {} until workers were here, {} for their state, {} for the steps",
            lost.done.saturating_sub(lost.from),
            seconds(all),
            seconds(lost.here),
            seconds(lost.restored.saturating_sub(lost.here)),
            seconds(all.saturating_sub(lost.restored))
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
            assert!(!recovery.may_go_on(&other, now, true));
        }
        recovery.done(4, &progress);
        for error in [lost(true), ended, lost(true)] {
            assert!(recovery.may_go_on(&error, now, false));
            recovery.goes_on(1, 2, Some((2, "the checkpoint")));
            recovery.restored(&progress);
            // Repeated steps are no progress.
            recovery.done(3, &progress);
            assert!(recovery.lost.is_some());
        }
        assert!(!recovery.may_go_on(&lost(true), now, true));
        recovery.done(4, &progress);
        assert!(recovery.lost.is_none() && !recovery.may_go_on(&lost(true), now, true));
        recovery.done(5, &progress);
        assert!(recovery.may_go_on(&lost(true), now, false));
        // No step has to be repeated.
        recovery.goes_on(2, 2, Some((5, "the checkpoint")));
        recovery.restored(&progress);
        assert!(recovery.lost.is_none());
        // Another worker may be fit for the part of an unfit one.
        let unfit = BossManError::Worker(Failure { unfit: true, ..Failure::new("out of memory") });
        assert!(!recovery.may_go_on(&unfit, now, false) && recovery.may_go_on(&unfit, now, true));
    }

    #[test]
    fn a_run_that_ends_is_told_what_would_have_helped() {
        let told = ended(lost(true), false).to_string();
        assert!(told.starts_with("lost (it was tired); start the run again: with `checkpoint`"), "{told}");
        assert_eq!(ended(lost(true), true).to_string(), "lost (it was tired); go on with --resume");
        assert!(!ended(lost(false), false).to_string().contains("checkpoint"));
    }
}
