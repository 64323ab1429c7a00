//! The decision after a failure: repeat, rebuild the session, save memory, or stop.

use super::Cause;
use crate::ids::WorkerId;

/// The most failures in a row without progress in a run whose workers are fixed. More end it,
/// because the workers are then not the cause.
pub const MAX_ATTEMPTS: u32 = 3;

/// In a pool each member may leave once in a step, and this many more failures may follow.
pub const POOL_ATTEMPTS: u32 = 16;

/// The facts, besides the cause, on which the decision depends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Situation {
    /// A pool, which workers join and leave. Replicas hold the state.
    Pool {
        /// The workers that take microbatches.
        members: usize,
        /// Whether the worker that failed is one of them, and another one of them has each of its
        /// stages.
        others_can_go_on: bool,
    },
    /// A run whose workers are fixed until one is lost.
    Fixed {
        /// Whether there is a state to resume from.
        can_restore: bool,
        /// Whether the run may continue without the worker that failed, because there are others or
        /// the boss starts new ones.
        has_substitute: bool,
        /// Whether the workers could need less memory for the same steps: by recomputing what they
        /// store, or with another plan.
        can_save_memory: bool,
        /// Whether the session took in a worker that came late, and has completed no step. Without
        /// that worker the run went on, so it does again.
        has_grown: bool,
    },
}

/// The reaction to a failure.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// Repeat the step or call with the current members.
    Repeat,
    /// Remove this member, which failed where others did not, and repeat.
    RepeatWithout(WorkerId),
    /// Build the session again from the last state, and repeat what followed it.
    Rebuild {
        /// A worker that must not join again.
        ban: Option<WorkerId>,
    },
    /// Build the session again as for [`Remedy::Rebuild`], with the same workers. From then on they
    /// need less memory for the same steps.
    SaveMemory,
    /// Return the error to the user.
    Stop(StopReason),
}

impl Remedy {
    /// Whether the session is built again, and the run begins again from its last state.
    pub fn begins_again(self) -> bool {
        matches!(self, Remedy::Rebuild { .. } | Remedy::SaveMemory)
    }
}

/// The reason to stop.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// Repeating would fail again.
    WouldFailAgain,
    /// Workers were lost, and there is no state to resume from.
    NoState,
    /// Too many attempts in a row made no progress.
    TooManyAttempts,
}

/// Counts the failures of one run or call, and decides what to do after each.
#[derive(Clone, Debug, Default)]
pub struct RecoveryPolicy {
    /// Failures since the last progress.
    attempts: u32,
    /// The last completed step.
    furthest: u64,
    /// The most attempts. Set when the first of them fails.
    limit: u32,
    /// A member failed at this position. If a second one fails, the step is the cause.
    removed_a_member: bool,
}

impl RecoveryPolicy {
    /// Decides what to do after a failure of this cause, which `worker` reported. If the session
    /// has grown, `worker` is set only if it is a newcomer, because it may be banned.
    pub fn decide(
        &mut self,
        cause: Cause,
        worker: Option<WorkerId>,
        situation: Situation,
    ) -> Remedy {
        let remedy = self.remedy(cause, worker, situation);
        if matches!(remedy, Remedy::Stop(_)) {
            return remedy;
        }
        if self.attempts == 0 {
            self.limit = match situation {
                Situation::Pool { members, .. } => {
                    POOL_ATTEMPTS.saturating_add(u32::try_from(members).unwrap_or(u32::MAX))
                }
                Situation::Fixed { .. } => MAX_ATTEMPTS,
            };
        }
        if self.attempts >= self.limit {
            return Remedy::Stop(StopReason::TooManyAttempts);
        }
        self.attempts += 1;
        self.removed_a_member |= matches!(remedy, Remedy::RepeatWithout(_));
        remedy
    }

    /// The remedy, without regard to the number of attempts.
    fn remedy(&self, cause: Cause, worker: Option<WorkerId>, situation: Situation) -> Remedy {
        match (cause, situation) {
            (Cause::NotFinite | Cause::Refused, _) => Remedy::Stop(StopReason::WouldFailAgain),
            (Cause::Lost, Situation::Pool { .. }) => Remedy::Repeat,
            (
                Cause::Unfit | Cause::OutOfMemory | Cause::Other,
                Situation::Pool { others_can_go_on: true, .. },
            ) => match worker.filter(|_| !self.removed_a_member) {
                Some(worker) => Remedy::RepeatWithout(worker),
                None => Remedy::Stop(StopReason::WouldFailAgain),
            },
            (Cause::Lost, Situation::Fixed { can_restore, .. }) => rebuild(can_restore, None),
            // A newcomer may lack what the others have, for example data or memory. A failure that
            // has another cause comes again without it, and ends the run then.
            (
                Cause::Unfit | Cause::OutOfMemory | Cause::Other,
                Situation::Fixed { can_restore, has_grown: true, .. },
            ) => rebuild(can_restore, worker),
            // All workers stay, because the part of a lost one would need memory elsewhere.
            (Cause::OutOfMemory, Situation::Fixed { can_restore, can_save_memory: true, .. }) => {
                from_state(can_restore, Remedy::SaveMemory)
            }
            (
                Cause::Unfit | Cause::OutOfMemory,
                Situation::Fixed { can_restore, has_substitute: true, .. },
            ) => rebuild(can_restore, worker),
            // A worker that was started in place of a lost one. At first its end tells that the
            // worker program cannot run here. For growth all local workers are started again.
            (Cause::LocalWorkerEnded, Situation::Fixed { can_restore, has_grown, .. })
                if has_grown || self.attempts > 0 =>
            {
                rebuild(can_restore, None)
            }
            _ => Remedy::Stop(StopReason::WouldFailAgain),
        }
    }

    /// Records that the run completed this step. A repeated step is no progress.
    pub fn completed(&mut self, step: u64) {
        if step > self.furthest {
            *self = RecoveryPolicy { furthest: step, ..RecoveryPolicy::default() };
        }
    }

    /// The last completed step.
    pub fn furthest(&self) -> u64 {
        self.furthest
    }

    /// The failures since the last progress.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

fn rebuild(can_restore: bool, ban: Option<WorkerId>) -> Remedy {
    from_state(can_restore, Remedy::Rebuild { ban })
}

/// A remedy that begins again from the last state, if there is one.
fn from_state(can_restore: bool, remedy: Remedy) -> Remedy {
    match can_restore {
        true => remedy,
        false => Remedy::Stop(StopReason::NoState),
    }
}

#[cfg(test)]
mod tests {
    use super::Cause::*;
    use super::Remedy::{Rebuild, Repeat, RepeatWithout, SaveMemory, Stop};
    use super::StopReason::{NoState, TooManyAttempts, WouldFailAgain};
    use super::*;
    use crate::message::{Failure, FailureKind};

    const WORKER: WorkerId = WorkerId(2);
    const POOL: Situation = Situation::Pool { members: 3, others_can_go_on: true };
    const NEWCOMER: Situation = Situation::Pool { members: 3, others_can_go_on: false };
    const RUN: Situation = fixed(true, true, false);
    const ALONE: Situation = fixed(true, false, false);
    const NO_STATE: Situation = fixed(false, true, false);

    const fn fixed(can_restore: bool, has_substitute: bool, can_save_memory: bool) -> Situation {
        Situation::Fixed { can_restore, has_substitute, can_save_memory, has_grown: false }
    }

    /// The same run, whose session took in a worker and has completed no step.
    const fn grown(can_restore: bool, has_substitute: bool, can_save_memory: bool) -> Situation {
        Situation::Fixed { can_restore, has_substitute, can_save_memory, has_grown: true }
    }

    #[test]
    fn each_cause_has_its_remedy_in_each_situation() {
        let (without, stop) = (RepeatWithout(WORKER), Stop(WouldFailAgain));
        let (again, ban) = (Rebuild { ban: None }, Rebuild { ban: Some(WORKER) });
        let table = [
            // cause, pool, newcomer of a pool, run, run with one worker, run without state
            (Lost, Repeat, Repeat, again, again, Stop(NoState)),
            (Unfit, without, stop, ban, stop, Stop(NoState)),
            (OutOfMemory, without, stop, ban, stop, Stop(NoState)),
            (LocalWorkerEnded, stop, stop, stop, stop, stop),
            (NotFinite, stop, stop, stop, stop, stop),
            (Refused, stop, stop, stop, stop, stop),
            (Other, without, stop, stop, stop, stop),
        ];
        for (cause, pool, newcomer, run, alone, no_state) in table {
            let decide =
                |situation| RecoveryPolicy::default().decide(cause, Some(WORKER), situation);
            let decided = [POOL, NEWCOMER, RUN, ALONE, NO_STATE].map(decide);
            assert_eq!(decided, [pool, newcomer, run, alone, no_state], "{cause:?}");
        }
    }

    /// Recomputation changes the remedy of one cause only.
    #[test]
    fn a_run_that_is_out_of_memory_saves_some_if_it_can() {
        let decide =
            |cause, situation| RecoveryPolicy::default().decide(cause, Some(WORKER), situation);
        for has_substitute in [true, false] {
            for can_restore in [true, false] {
                let saves = fixed(can_restore, has_substitute, true);
                let remedy = if can_restore { SaveMemory } else { Stop(NoState) };
                assert_eq!(decide(OutOfMemory, saves), remedy, "{saves:?}");
                let stores_little = fixed(can_restore, has_substitute, false);
                for cause in [Lost, Unfit, LocalWorkerEnded, NotFinite, Refused, Other] {
                    let decided = decide(cause, saves);
                    assert_eq!(decided, decide(cause, stores_little), "{cause:?}");
                }
            }
        }
        // Once no memory can be saved, another worker may still have it.
        let mut policy = RecoveryPolicy::default();
        let storing = fixed(true, true, true);
        assert_eq!(policy.decide(OutOfMemory, Some(WORKER), storing), SaveMemory);
        let ban = Some(WORKER);
        assert_eq!(policy.decide(OutOfMemory, Some(WORKER), RUN), Rebuild { ban });
        assert_eq!(policy.decide(OutOfMemory, Some(WORKER), storing), SaveMemory);
        let last = policy.decide(OutOfMemory, Some(WORKER), storing);
        assert_eq!((last, policy.attempts()), (Stop(TooManyAttempts), MAX_ATTEMPTS));
    }

    /// A newcomer never ends a run that went on without it.
    #[test]
    fn a_grown_run_goes_on_without_its_newcomer() {
        let (again, ban) = (Rebuild { ban: None }, Rebuild { ban: Some(WORKER) });
        let stop = Stop(WouldFailAgain);
        let table = [
            // cause, a newcomer failed, another worker or the boss failed
            (Lost, again, again),
            (Unfit, ban, again),
            (OutOfMemory, ban, again),
            (LocalWorkerEnded, again, again),
            (NotFinite, stop, stop),
            (Refused, stop, stop),
            (Other, ban, again),
        ];
        for (cause, newcomer, other) in table {
            let decide =
                |worker, situation| RecoveryPolicy::default().decide(cause, worker, situation);
            for has_substitute in [true, false] {
                for can_save_memory in [true, false] {
                    let situation = grown(true, has_substitute, can_save_memory);
                    let decided = [Some(WORKER), None].map(|worker| decide(worker, situation));
                    assert_eq!(decided, [newcomer, other], "{cause:?}, {situation:?}");
                    let no_state = grown(false, has_substitute, can_save_memory);
                    let remedy = if newcomer == stop { stop } else { Stop(NoState) };
                    assert_eq!(decide(Some(WORKER), no_state), remedy, "{cause:?}, {no_state:?}");
                }
            }
        }
    }

    /// An error that comes again without the newcomer ends the run.
    #[test]
    fn an_error_that_is_not_the_newcomers_ends_the_run() {
        let mut policy = RecoveryPolicy::default();
        policy.completed(4);
        let in_growth = grown(true, true, false);
        assert_eq!(policy.decide(Other, None, in_growth), Rebuild { ban: None });
        assert_eq!(policy.decide(Other, None, RUN), Stop(WouldFailAgain));
        for _ in policy.attempts()..MAX_ATTEMPTS {
            assert_eq!(policy.decide(Other, None, in_growth), Rebuild { ban: None });
        }
        assert_eq!(policy.decide(Other, None, in_growth), Stop(TooManyAttempts));
    }

    #[test]
    fn some_remedies_begin_again() {
        for remedy in [Rebuild { ban: None }, Rebuild { ban: Some(WORKER) }, SaveMemory] {
            assert!(remedy.begins_again(), "{remedy:?}");
        }
        for remedy in [Repeat, RepeatWithout(WORKER), Stop(WouldFailAgain)] {
            assert!(!remedy.begins_again(), "{remedy:?}");
        }
    }

    #[test]
    fn attempts_without_progress_are_bounded() {
        for (situation, limit) in [(RUN, MAX_ATTEMPTS), (POOL, POOL_ATTEMPTS + 3)] {
            let mut policy = RecoveryPolicy::default();
            policy.completed(4);
            for step in [4, 5, 6] {
                for attempt in 0..limit {
                    let remedy = policy.decide(Lost, None, situation);
                    assert!(matches!(remedy, Repeat | Rebuild { .. }), "{attempt}: {remedy:?}");
                    // Repeated steps are no progress.
                    policy.completed(step - 1);
                    policy.completed(step);
                    if step > 4 {
                        break;
                    }
                }
                if step == 4 {
                    assert_eq!(policy.decide(Lost, None, situation), Stop(TooManyAttempts));
                    assert_eq!(policy.attempts(), limit);
                    policy.completed(5);
                }
                assert_eq!(
                    (policy.attempts(), policy.furthest()),
                    (u32::from(step == 5), step.max(5))
                );
            }
        }
    }

    /// The limit of a pool is that of the members that it had when the trouble began.
    #[test]
    fn members_that_join_and_die_do_not_prolong_a_pool() {
        let mut policy = RecoveryPolicy::default();
        let failures = (1..1000).take_while(|members| {
            let situation = Situation::Pool { members: *members, others_can_go_on: true };
            policy.decide(Lost, None, situation) == Repeat
        });
        assert_eq!(failures.count() as u32, POOL_ATTEMPTS + 1);
    }

    #[test]
    fn a_second_member_that_fails_in_a_step_proves_the_step_wrong() {
        let mut policy = RecoveryPolicy::default();
        assert_eq!(policy.decide(Other, Some(WORKER), POOL), RepeatWithout(WORKER));
        assert_eq!(policy.decide(Lost, None, POOL), Repeat);
        assert_eq!(policy.decide(Other, Some(WorkerId(0)), POOL), Stop(WouldFailAgain));
        policy.completed(1);
        assert_eq!(policy.decide(Unfit, Some(WorkerId(0)), POOL), RepeatWithout(WorkerId(0)));
        assert_eq!(policy.decide(Unfit, None, POOL), Stop(WouldFailAgain));
    }

    #[test]
    fn a_replacement_that_ends_is_replaced_again() {
        let mut policy = RecoveryPolicy::default();
        assert_eq!(policy.decide(Lost, None, RUN), Rebuild { ban: None });
        assert_eq!(policy.decide(LocalWorkerEnded, None, RUN), Rebuild { ban: None });
        policy.completed(1);
        assert_eq!(policy.decide(LocalWorkerEnded, None, RUN), Stop(WouldFailAgain));
    }

    #[test]
    fn a_failure_has_one_cause() {
        let failure = |kind| Failure { kind, ..Failure::new("") };
        for (failure, cause) in [
            (failure(FailureKind::Other), Other),
            (failure(FailureKind::Unfit), Unfit),
            (failure(FailureKind::OutOfMemory), OutOfMemory),
            (failure(FailureKind::NotFinite), NotFinite),
            (failure(FailureKind::Refused), Refused),
            (failure(FailureKind::Lost), Lost),
            (failure(FailureKind::WorkerMissing), Lost),
        ] {
            assert_eq!(Cause::of(&failure), cause);
        }
    }
}
