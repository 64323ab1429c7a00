//! Decides whether a run continues after a loss of workers, and measures the cost. A run resumes
//! from its last checkpoint or a peer snapshot, and calls by hand from the boss's copy.
//!
//! The remaining workers join again, and spares take the places of lost ones. The model is cut for
//! the workers that joined, and the steps or calls since the state are repeated. Random draws and
//! samples depend only on the numbers of steps, and the result does not depend on the cut (law 1).
//! So the result equals that of a run without a loss.

use crate::BossManError;
use pipeline::ids::WorkerId;
use pipeline::message::Failure;
use pipeline::recovery::{
    Cause, RecoveryCost, RecoveryPolicy, Remedy, Repeated, ResumeReport, Situation,
};
use runtime::Handle;
use std::time::{Duration, Instant};
use tracing::{info, info_span, Span};

/// The state of recovery in a run, or in a call by hand.
#[derive(Default)]
pub(crate) struct Recovery {
    policy: RecoveryPolicy,
    outage: Option<Outage>,
}

/// The recovery in progress.
struct Outage {
    since: Instant,
    /// The workers that may not join again.
    lost: usize,
    /// The times until workers had joined again, and until they had their state.
    rejoined_after: Duration,
    restored_after: Duration,
    /// The steps completed at the loss, and the number of them that are not repeated.
    done: u64,
    from: u64,
}

/// The facts about a session that failed.
pub(crate) struct FailedSessionFacts {
    /// Whether there is a state to resume from.
    pub(crate) can_restore: bool,
    /// Whether the run may continue without the worker that failed.
    pub(crate) has_substitute: bool,
    /// Whether the workers could need less memory for the same steps.
    pub(crate) can_save_memory: bool,
    /// The workers that have joined it as newcomers, if it was to take in some and has completed no
    /// step.
    pub(crate) newcomers: Option<Vec<WorkerId>>,
}

/// The error of a run without recovery, which may have checkpoints.
pub(crate) fn with_resume_advice(error: BossManError, checkpoints: bool) -> BossManError {
    let advice = match checkpoints {
        true => "resume with --resume",
        false => "start the run again: with `checkpoint` in its run file it recovers by itself",
    };
    error.with_advice_if_lost(|| advice.into())
}

/// The error of a pool that lost its state with its workers.
pub(crate) fn with_pool_advice(error: BossManError, checkpoints: bool) -> BossManError {
    let advice = match checkpoints {
        true => "resume with --resume",
        false => {
            "start again from the weights that were saved last (--weights); with `checkpoint` in \
             its run file a pool goes on by itself"
        }
    };
    error.with_advice_if_lost(|| advice.into())
}

/// The error of a run that has no memory for its work, with what helps.
pub(crate) fn with_memory_advice(error: BossManError, can_recompute: bool) -> BossManError {
    let advice = match can_recompute {
        true => {
            "set `recompute: full` in the run file, or use smaller microbatches or more workers"
        }
        false => "use smaller microbatches or more workers",
    };
    error.with_advice_if(Cause::OutOfMemory, || advice.into())
}

/// The warning of a run that was out of memory after this many steps, and goes on.
pub(crate) fn recompute_warning(error: &BossManError, done: u64) -> String {
    format!(
        "out of memory after {done} steps: {error}; the run goes on with `recompute: full`, which \
         takes about a third more time and changes no result; to avoid the repetition, set \
         `recompute: full` in the run file, or use smaller microbatches"
    )
}

/// The warning of a run for whose memory no schedule is predicted to do, and which goes on.
pub(crate) fn prediction_warning(error: &BossManError) -> String {
    format!(
        "{error}; the run goes on with `recompute: full`, which takes about a third more time and \
         changes no result"
    )
}

/// The warning of a run that was out of memory after this many steps although it recomputes what it
/// can, and goes on.
pub(crate) fn plan_warning(error: &BossManError, done: u64) -> String {
    format!(
        "out of memory after {done} steps: {error}; the run goes on with a plan that leaves a \
         quarter of the workers' memory unused, which changes no result; to avoid the repetition, \
         set `cuts` as it then says, or use smaller microbatches or more workers"
    )
}

/// Disconnects a worker that must not join again, and tells it so.
pub(crate) fn ban(remedy: Remedy, error: &BossManError, handle: &Handle) {
    if let (Remedy::Rebuild { ban: Some(worker) }, BossManError::Worker(failure)) = (remedy, error)
    {
        handle.evict(worker, &failure.message);
    }
}

/// Logs the decision after an error.
pub(crate) fn log_remedy(error: &BossManError, remedy: Remedy) {
    let worker = error.worker().map(|worker| worker.0);
    info!(worker, error = error.to_string(), ?remedy, "failure");
}

impl BossManError {
    /// Whether workers had too little memory, or would have.
    pub(crate) fn is_of_memory(&self) -> bool {
        self.cause() == Cause::OutOfMemory || matches!(self, BossManError::NoSchedule(_))
    }

    /// The cause, as recovery distinguishes causes.
    pub(crate) fn cause(&self) -> Cause {
        match self {
            BossManError::Worker(failure) => Cause::of(failure),
            BossManError::LocalWorkers(_) => Cause::LocalWorkerEnded,
            _ => Cause::Other,
        }
    }

    fn worker(&self) -> Option<WorkerId> {
        match self {
            BossManError::Worker(failure) => failure.worker,
            _ => None,
        }
    }

    /// Adds advice to the error of a lost worker.
    pub(crate) fn with_advice_if_lost(self, advice: impl FnOnce() -> String) -> Self {
        self.with_advice_if(Cause::Lost, advice)
    }

    /// Adds advice to an error of this cause.
    fn with_advice_if(self, cause: Cause, advice: impl FnOnce() -> String) -> Self {
        match self {
            BossManError::Worker(failure) if Cause::of(&failure) == cause => {
                let message = format!("{}; {}", failure.message, advice());
                BossManError::Worker(Failure { message, ..failure })
            }
            other => other,
        }
    }
}

impl Recovery {
    /// Records a failure at this time, and decides what to do.
    pub(crate) fn decide(
        &mut self,
        error: &BossManError,
        at: Instant,
        facts: &FailedSessionFacts,
    ) -> Remedy {
        let FailedSessionFacts { can_restore, has_substitute, can_save_memory, .. } = *facts;
        let newcomers = facts.newcomers.as_ref();
        let has_grown = newcomers.is_some();
        let situation =
            Situation::Fixed { can_restore, has_substitute, can_save_memory, has_grown };
        // The others worked before, so only a newcomer is at fault.
        let may_be_banned = |worker: &WorkerId| newcomers.is_none_or(|all| all.contains(worker));
        let worker = error.worker().filter(may_be_banned);
        // Without other means the same is predicted again.
        let cause = match error {
            BossManError::NoSchedule(_) if can_save_memory => Cause::OutOfMemory,
            _ => error.cause(),
        };
        let remedy = self.policy.decide(cause, worker, situation);
        log_remedy(error, remedy);
        if remedy.begins_again() {
            let since = self.outage.as_ref().map_or(at, |outage| outage.since);
            self.begin_outage(since, usize::from(remedy != Remedy::SaveMemory));
        }
        remedy
    }

    /// Records that a session ends at this time, after the last completed step, so that the next
    /// one has more workers. No worker is lost, and no step is repeated.
    pub(crate) fn begin_growth(&mut self, at: Instant) {
        self.begin_outage(at, 0);
    }

    fn begin_outage(&mut self, since: Instant, lost: usize) {
        self.outage = Some(Outage {
            since,
            lost,
            rejoined_after: Duration::ZERO,
            restored_after: Duration::ZERO,
            done: self.policy.furthest(),
            from: 0,
        });
    }

    /// The failures since the last progress.
    pub(crate) fn attempts(&self) -> u32 {
        self.policy.attempts()
    }

    /// The span of the log in which a session starts, after this step or update: the first one,
    /// one with more workers, or one that recovers.
    pub(crate) fn session_span(&self, after: u64) -> Span {
        match (self.is_recovering(), self.attempts()) {
            (false, _) => info_span!("start", after),
            (true, 0) => info_span!("growth", after),
            (true, attempts) => info_span!("recovery", after, attempts),
        }
    }

    /// The last completed step.
    pub(crate) fn furthest(&self) -> u64 {
        self.policy.furthest()
    }

    /// Whether lost steps or calls are still to be repeated.
    pub(crate) fn is_recovering(&self) -> bool {
        self.outage.is_some()
    }

    /// Whether the last session left state that this process has trained. Before the first step
    /// there is none.
    pub(crate) fn left_trained_state(&self) -> bool {
        self.is_recovering() && self.furthest() > 0
    }

    /// The workers of the last session that may not join again.
    pub(crate) fn lost(&self) -> usize {
        self.outage.as_ref().map_or(0, |outage| outage.lost)
    }

    /// Records that workers have joined again.
    pub(crate) fn workers_rejoined(&mut self) {
        if let Some(outage) = &mut self.outage {
            outage.rejoined_after = outage.since.elapsed();
        }
    }

    /// Records how the run resumes.
    pub(crate) fn resumes(&mut self, report: &ResumeReport) {
        info!(?report, "recovery");
        if let Some(outage) = &mut self.outage {
            outage.from = report.source.position();
        }
    }

    /// Records that workers have their state.
    pub(crate) fn state_restored(&mut self) {
        if let Some(outage) = &mut self.outage {
            outage.restored_after = outage.since.elapsed();
        }
    }

    /// Records a completed step. Returns the cost of the recovery after the last repeated step.
    pub(crate) fn step_done(&mut self, step: u64) -> Option<RecoveryCost> {
        self.policy.completed(step);
        self.caught_up(step)
    }

    /// Returns the cost of the recovery if no step after this one is still to be repeated.
    pub(crate) fn caught_up(&mut self, step: u64) -> Option<RecoveryCost> {
        let outage = self.outage.take_if(|outage| step >= outage.done)?;
        let repeated = Repeated::Steps(outage.done.saturating_sub(outage.from));
        Some(outage.cost(repeated))
    }

    /// Records that `calls` calls by hand are repeated. Returns the cost of the recovery.
    pub(crate) fn calls_repeated(&mut self, calls: usize) -> Option<RecoveryCost> {
        let outage = self.outage.take()?;
        Some(outage.cost(Repeated::Calls(calls as u64)))
    }
}

impl Outage {
    fn cost(&self, repeated: Repeated) -> RecoveryCost {
        RecoveryCost {
            repeated,
            rejoin: self.rejoined_after,
            restore: self.restored_after.saturating_sub(self.rejoined_after),
            recompute: self.since.elapsed().saturating_sub(self.restored_after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::message::FailureKind;
    use pipeline::recovery::StateSource;

    fn lost(is_loss: bool) -> BossManError {
        let kind = if is_loss { FailureKind::Lost } else { FailureKind::Other };
        BossManError::Worker(Failure { kind, ..Failure::new("lost (it was tired)") })
    }

    fn facts(has_substitute: bool, can_save_memory: bool) -> FailedSessionFacts {
        FailedSessionFacts { can_restore: true, has_substitute, can_save_memory, newcomers: None }
    }

    fn resumes(recovery: &mut Recovery, step: u64) {
        let source = StateSource::Checkpoint { step };
        recovery.resumes(&ResumeReport { workers: 1, initial_workers: 2, source });
    }

    #[test]
    fn a_run_resumes_when_workers_are_lost_and_not_for_ever() {
        let now = Instant::now();
        let mut recovery = Recovery::default();
        let may_retry = |recovery: &mut Recovery, error: &BossManError, others| {
            let remedy = recovery.decide(error, now, &facts(others, false));
            matches!(remedy, Remedy::Rebuild { .. })
        };
        let ended = BossManError::LocalWorkers("it ended".into());
        for other in [&lost(false), &BossManError::Usage("no".into()), &ended] {
            assert!(!may_retry(&mut recovery, other, true));
        }
        assert!(recovery.step_done(4).is_none());
        for error in [lost(true), ended, lost(true)] {
            assert!(may_retry(&mut recovery, &error, false));
            resumes(&mut recovery, 2);
            recovery.state_restored();
            // Repeated steps are no progress.
            assert!(recovery.caught_up(2).is_none() && recovery.step_done(3).is_none());
        }
        assert!(!may_retry(&mut recovery, &lost(true), true));
        let cost = recovery.step_done(4).unwrap();
        assert_eq!(cost.repeated, Repeated::Steps(2));
        assert!(!may_retry(&mut recovery, &lost(true), true));
        assert!(recovery.step_done(5).is_none());
        assert!(may_retry(&mut recovery, &lost(true), false));
        // No step has to be repeated.
        resumes(&mut recovery, 5);
        assert_eq!(recovery.caught_up(5).unwrap().repeated, Repeated::Steps(0));
        // Another worker may be fit for the part of an unfit one.
        let kind = FailureKind::Unfit;
        let unfit = BossManError::Worker(Failure { kind, ..Failure::new("it panicked") });
        assert!(!may_retry(&mut recovery, &unfit, false) && may_retry(&mut recovery, &unfit, true));
    }

    fn out_of_memory() -> BossManError {
        let kind = FailureKind::OutOfMemory;
        BossManError::Worker(Failure { kind, ..Failure::new("out of memory") })
    }

    #[test]
    fn a_run_that_recomputes_activations_keeps_its_workers() {
        let now = Instant::now();
        let mut recovery = Recovery::default();
        assert!(recovery.step_done(4).is_none());
        let remedy = recovery.decide(&out_of_memory(), now, &facts(false, true));
        assert_eq!(remedy, Remedy::SaveMemory);
        assert!(recovery.is_recovering());
        assert_eq!(recovery.lost(), 0);
        let remedy = recovery.decide(&lost(true), now, &facts(false, false));
        assert_eq!(remedy, Remedy::Rebuild { ban: None });
        assert_eq!(recovery.lost(), 1);
    }

    /// The recovery of a call ends when its calls are repeated, and counts from its first failure.
    #[test]
    fn a_recovery_is_measured_from_its_first_failure() {
        let mut recovery = Recovery::default();
        assert!(recovery.calls_repeated(3).is_none());
        let (long, now) = (Duration::from_secs(60), Instant::now());
        let first = now.checked_sub(long).unwrap();
        for at in [first, now] {
            let remedy = recovery.decide(&lost(true), at, &facts(false, false));
            assert_eq!(remedy, Remedy::Rebuild { ban: None });
        }
        assert_eq!(recovery.attempts(), 2);
        recovery.workers_rejoined();
        recovery.state_restored();
        let cost = recovery.calls_repeated(3).unwrap();
        assert_eq!(cost.repeated, Repeated::Calls(3));
        assert!(cost.rejoin >= long && cost.restore + cost.recompute < long);
        assert!(!recovery.is_recovering());
    }

    #[test]
    fn a_call_whose_state_is_gone_is_not_repeated() {
        let mut recovery = Recovery::default();
        let facts = FailedSessionFacts { can_restore: false, ..facts(true, false) };
        let remedy = recovery.decide(&lost(true), Instant::now(), &facts);
        assert!(!remedy.begins_again() && !recovery.is_recovering());
    }

    /// Ctrl-C then has nothing to wait for.
    #[test]
    fn a_loss_before_the_first_step_leaves_no_state() {
        let mut recovery = Recovery::default();
        let remedy = recovery.decide(&lost(true), Instant::now(), &facts(false, false));
        assert_eq!(remedy, Remedy::Rebuild { ban: None });
        assert!(recovery.is_recovering() && !recovery.left_trained_state());
    }

    #[test]
    fn growth_is_a_recovery_that_loses_nothing() {
        let mut recovery = Recovery::default();
        assert!(recovery.step_done(4).is_none());
        assert!(!recovery.left_trained_state());
        recovery.begin_growth(Instant::now());
        assert!(recovery.left_trained_state());
        assert_eq!((recovery.is_recovering(), recovery.lost()), (true, 0));
        recovery.workers_rejoined();
        resumes(&mut recovery, 4);
        assert_eq!(recovery.caught_up(4).unwrap().repeated, Repeated::Steps(0));
        assert!(!recovery.is_recovering());
    }

    /// The same error of another worker, or later, would end the run.
    #[test]
    fn a_newcomer_that_fails_costs_its_place_only() {
        let now = Instant::now();
        let by = |worker| {
            let failure = Failure::new("it has no such file").on(WorkerId(worker));
            BossManError::Worker(failure)
        };
        let newcomers = Some(vec![WorkerId(1)]);
        let grown = FailedSessionFacts { newcomers, ..facts(true, false) };
        let decide = |error: &BossManError, facts: &FailedSessionFacts| {
            let mut recovery = Recovery::default();
            recovery.begin_growth(now);
            recovery.decide(error, now, facts)
        };
        assert_eq!(decide(&by(1), &grown), Remedy::Rebuild { ban: Some(WorkerId(1)) });
        assert_eq!(decide(&by(0), &grown), Remedy::Rebuild { ban: None });
        assert!(!decide(&by(1), &facts(true, false)).begins_again());
    }

    #[test]
    fn a_run_that_is_out_of_memory_is_told_what_helps() {
        assert_eq!(
            with_memory_advice(out_of_memory(), true).to_string(),
            "out of memory; set `recompute: full` in the run file, or use smaller microbatches or \
             more workers"
        );
        assert_eq!(
            with_memory_advice(out_of_memory(), false).to_string(),
            "out of memory; use smaller microbatches or more workers"
        );
        assert!(!with_memory_advice(lost(true), true).to_string().contains("microbatches"));
        let told = plan_warning(&out_of_memory(), 3);
        assert!(told.starts_with("out of memory after 3 steps: "), "{told}");
        let told = recompute_warning(&out_of_memory(), 3);
        assert!(told.starts_with("out of memory after 3 steps: out of memory; the run"), "{told}");
    }

    #[test]
    fn a_run_that_ends_is_told_what_would_have_helped() {
        let told = with_resume_advice(lost(true), false).to_string();
        assert!(
            told.starts_with("lost (it was tired); start the run again: with `checkpoint`"),
            "{told}"
        );
        assert_eq!(
            with_resume_advice(lost(true), true).to_string(),
            "lost (it was tired); resume with --resume"
        );
        assert!(!with_resume_advice(lost(false), false).to_string().contains("checkpoint"));
    }
}
