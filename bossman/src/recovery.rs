//! How a run goes on by itself where workers are lost: with who is left, from its last checkpoint.
//!
//! Whoever is left joins again, spares take the places of who is gone, the model is cut for as many as there are, and the
//! steps since the checkpoint are done again. What is drawn at random, and which samples come, depends on the numbers of steps
//! alone, and the result on no cut (law 1), so it is that of a run in which nothing was lost.

use crate::output;
use crate::progress::Progress;
use crate::BossManError;
use pipeline::message::Failure;
use std::time::{Duration, Instant};

/// So many failures in a row without a step that had not been done before end a run: what fails is then not the workers.
const MOST_IN_VAIN: u32 = 3;

/// How a run fares.
#[derive(Default)]
pub(crate) struct Recovery {
    lost: Option<Lost>,
    /// Failures since a step was done that had not been done before.
    in_vain: u32,
    /// The last step that was done.
    furthest: u64,
}

/// What is being made good.
struct Lost {
    since: Instant,
    /// Until workers were here again, and until they had their state.
    ready: Option<(Duration, Duration)>,
    /// The step that failed, and the one gone on from.
    step: u64,
    from: u64,
}

/// The error of a run that had nothing to go on with.
pub(crate) fn without_checkpoints(error: BossManError) -> BossManError {
    match error {
        BossManError::Worker(failure) if failure.passing => {
            let message = format!(
                "{}; start the run again: with `checkpoint` in its run file it goes on by itself",
                failure.message
            );
            BossManError::Worker(Failure { message, ..failure })
        }
        other => other,
    }
}

impl Recovery {
    /// Whether the run may go on after this; what happened is told.
    pub(crate) fn may_go_on(&mut self, error: &BossManError, step: u64) -> bool {
        let BossManError::Worker(failure) = error else { return false };
        self.in_vain += 1;
        if !failure.passing || self.in_vain > MOST_IN_VAIN {
            return false;
        }
        output::warn(&format!("warning: step {step} failed: {error}"));
        let since = self.lost.as_ref().map_or_else(Instant::now, |lost| lost.since);
        let step = self.lost.as_ref().map_or(step, |lost| lost.step.max(step));
        self.lost = Some(Lost { since, ready: None, step, from: 0 });
        true
    }

    /// Workers are here again.
    pub(crate) fn gathered(&mut self, workers: usize, before: usize, from: u64) {
        if let Some(lost) = &mut self.lost {
            lost.ready = Some((lost.since.elapsed(), Duration::ZERO));
            lost.from = from;
            let state = match from {
                0 => "from the beginning, for there is no checkpoint yet".to_string(),
                from => format!("from the checkpoint of step {from}"),
            };
            output::warn(&format!("recovery: going on with {workers} of {before} workers, {state}"));
        }
    }

    /// They have what they go on with.
    pub(crate) fn restored(&mut self) {
        if let Some(Lost { since, ready: Some((gathered, restored)), .. }) = &mut self.lost {
            *restored = since.elapsed().saturating_sub(*gathered);
        }
    }

    /// A step is done.
    pub(crate) fn done(&mut self, step: u64, progress: &Progress) {
        if step > self.furthest {
            (self.furthest, self.in_vain) = (step, 0);
        }
        let Some(Lost { since, ready, step: failed, from }) = self.lost.take_if(|lost| step >= lost.step) else {
            return;
        };
        let (gathered, restored) = ready.unwrap_or_default();
        let all = since.elapsed();
        let redone = failed.saturating_sub(from + 1);
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        progress.line(&format!(
            "recovery: {redone} steps were done again; {} lost: {} until workers were here, {} for their state, {} for the steps",
            seconds(all),
            seconds(gathered),
            seconds(restored),
            seconds(all.saturating_sub(gathered + restored))
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
        let progress = Progress::start(9, 0, true);
        let mut recovery = Recovery::default();
        assert!(!recovery.may_go_on(&lost(false), 1));
        assert!(!recovery.may_go_on(&BossManError::Usage("no".into()), 1));
        recovery.done(1, &progress);
        for _ in 0..MOST_IN_VAIN {
            assert!(recovery.may_go_on(&lost(true), 5));
            // What had been done before is done again, and that is no progress.
            recovery.done(1, &progress);
        }
        assert!(!recovery.may_go_on(&lost(true), 5));
        recovery.done(5, &progress);
        assert!(recovery.lost.is_none() && recovery.may_go_on(&lost(true), 6));
    }

    #[test]
    fn a_run_without_checkpoints_is_told_of_them() {
        let told = without_checkpoints(lost(true)).to_string();
        assert!(told.starts_with("lost (it was tired); start the run again: with `checkpoint`"), "{told}");
        assert!(!without_checkpoints(lost(false)).to_string().contains("checkpoint"));
    }
}
