//! Takes in workers that wait while a run goes on with fewer than at first.

use crate::events::Events;
use crate::workers::last_session::{KeptPlaces, LastSession};
use crate::Builder;
use link::WorkerInfo;
use pipeline::ids::WorkerId;
use pipeline::recovery::{Boundary, Growth};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// The growth of a run, back to its initial number of workers.
pub(super) struct RunGrowth {
    growth: Growth,
    phase: Phase,
    /// The workers that may hold state of the run: those of the last session that has completed a
    /// step, or that began without growth.
    known: Vec<WorkerInfo>,
    /// The waiting workers with which the run cannot grow, so that plans are not made in each step.
    refused: Vec<WorkerInfo>,
    /// The machines and processes of those that the user was told of.
    told: BTreeSet<(String, u32)>,
}

/// The progress of a growth.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Settled,
    /// The next session is to take in this number of workers.
    Awaits(usize),
    /// The session has taken in these workers, and has completed no step.
    TookIn(Vec<WorkerId>),
    /// The session that took in workers failed. The next one begins without them.
    Failed,
}

impl RunGrowth {
    /// The growth of a run with this number of workers at first.
    pub(super) fn new(initial: usize) -> Self {
        RunGrowth {
            growth: Growth::new(initial),
            phase: Phase::Settled,
            known: Vec::new(),
            refused: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    /// Decides after a completed step with how many workers the run begins a new session. `None` if
    /// it stays in this one. `waiting` are the workers that could join.
    pub(super) fn decide(
        &mut self,
        at: Boundary,
        waiting: &[WorkerInfo],
        builder: impl Fn() -> Builder,
        events: &Events,
    ) -> Option<usize> {
        let all: Vec<_> = self.known.iter().chain(waiting).cloned().collect();
        let is_refused = self.refused == waiting;
        let (was_asked, problem) = (Cell::new(false), RefCell::new(None));
        let fits = |workers: usize| {
            let Some(members) = all.get(..workers).filter(|_| !is_refused) else { return false };
            was_asked.set(true);
            let builder = builder();
            // A number of workers for which there is no plan is no worker's fault.
            if builder.check(workers).is_err() {
                return false;
            }
            let checked = builder.check_on(members);
            let fits = checked.is_ok();
            *problem.borrow_mut() = checked.err();
            fits
        };
        let decided = self.growth.decide(at, fits);
        if decided.is_none() && was_asked.get() {
            self.refused = waiting.to_vec();
            if let Some(problem) = problem.into_inner().filter(|_| self.are_new(waiting)) {
                events.warn(format!("workers that wait are not taken in: {problem}"));
            }
        }
        decided
    }

    /// Whether the user was not told yet of one of these workers.
    fn are_new(&mut self, waiting: &[WorkerInfo]) -> bool {
        let before = self.told.len();
        self.told.extend(waiting.iter().map(|info| (info.host.clone(), info.process)));
        self.told.len() > before
    }

    /// The next session is to take in this number of workers.
    pub(super) fn begin(&mut self, newcomers: usize) {
        self.phase = Phase::Awaits(newcomers);
    }

    /// Whether a growth has begun, and no step is completed since.
    pub(super) fn is_under_way(&self) -> bool {
        self.phase != Phase::Settled
    }

    /// The last session, of which `lost` of the `workers` may not come again.
    pub(super) fn last_session(&self, workers: usize, lost: usize) -> LastSession {
        let (kept, known) = (KeptPlaces::Remaining, self.known.clone());
        let last = LastSession { workers, lost, newcomers: 0, kept, known };
        match self.phase {
            Phase::Awaits(newcomers) => LastSession { newcomers, ..last },
            // A newcomer is lost, as far as is known. It would fail again.
            Phase::Failed => {
                let (workers, kept) = (self.known.len(), KeptPlaces::All);
                LastSession { workers, lost: 0, kept, ..last }
            }
            Phase::Settled | Phase::TookIn(_) => last,
        }
    }

    /// The workers that may hold state of the run.
    pub(super) fn known(&self) -> &[WorkerInfo] {
        &self.known
    }

    /// Workers have joined again, and with them these newcomers.
    pub(super) fn workers_rejoined(&mut self, newcomers: Vec<WorkerId>) {
        if let Phase::Awaits(_) = self.phase {
            self.phase = Phase::TookIn(newcomers);
        }
    }

    /// A session begins with these workers.
    pub(super) fn session_begins(&mut self, workers: &[WorkerInfo]) {
        self.refused.clear();
        // Until a step is done, newcomers have no state, and may not be fit.
        if self.newcomers().is_none() {
            self.known = workers.to_vec();
        }
    }

    /// The workers that the session has taken in, if it was to take in some and has completed no
    /// step. `None` also if nobody came.
    pub(super) fn newcomers(&self) -> Option<&[WorkerId]> {
        match &self.phase {
            Phase::Awaits(_) => Some(&[]),
            Phase::TookIn(newcomers) => Some(&newcomers[..]).filter(|all| !all.is_empty()),
            Phase::Settled | Phase::Failed => None,
        }
    }

    /// The session, with these workers, has completed a step.
    pub(super) fn step_done(&mut self, workers: &[WorkerInfo]) {
        if self.is_under_way() {
            self.known = workers.to_vec();
            self.phase = Phase::Settled;
        }
    }

    /// The session failed.
    pub(super) fn failed(&mut self) {
        self.phase = match &self.phase {
            Phase::TookIn(newcomers) if !newcomers.is_empty() => Phase::Failed,
            Phase::Failed => Phase::Failed,
            Phase::Settled | Phase::Awaits(_) | Phase::TookIn(_) => Phase::Settled,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(process: u32) -> WorkerInfo {
        WorkerInfo { process, ..WorkerInfo::default() }
    }

    fn growth() -> RunGrowth {
        let mut growth = RunGrowth::new(3);
        growth.session_begins(&[worker(1)]);
        growth
    }

    #[test]
    fn newcomers_are_known_once_a_step_is_done() {
        let mut growth = growth();
        growth.begin(2);
        let last = growth.last_session(1, 0);
        assert_eq!((last.workers, last.newcomers, last.kept), (1, 2, KeptPlaces::Remaining));
        growth.workers_rejoined(vec![WorkerId(0)]);
        let all = [worker(2), worker(1)];
        growth.session_begins(&all);
        assert_eq!(growth.newcomers(), Some(&[WorkerId(0)][..]));
        assert_eq!(growth.known(), [worker(1)]);
        assert!(growth.is_under_way());
        growth.step_done(&all);
        assert_eq!((growth.newcomers(), growth.known()), (None, &all[..]));
        assert!(!growth.is_under_way());
    }

    /// Else the same newcomer would end the run after three attempts.
    #[test]
    fn a_session_that_took_in_workers_and_failed_is_repeated_without_them() {
        let mut growth = growth();
        growth.begin(1);
        growth.workers_rejoined(vec![WorkerId(1)]);
        growth.session_begins(&[worker(1), worker(2)]);
        growth.failed();
        for _ in 0..2 {
            let last = growth.last_session(2, 1);
            assert_eq!((last.workers, last.lost, last.kept), (1, 0, KeptPlaces::All));
            assert_eq!(last.known, [worker(1)]);
            growth.failed();
        }
        growth.session_begins(&[worker(1)]);
        growth.step_done(&[worker(1)]);
        assert_eq!(growth.last_session(1, 1).kept, KeptPlaces::Remaining);
    }

    #[test]
    fn a_growth_to_which_nobody_came_leaves_nothing() {
        let mut growth = growth();
        growth.begin(1);
        growth.workers_rejoined(Vec::new());
        growth.session_begins(&[worker(1)]);
        assert!(growth.is_under_way() && growth.newcomers().is_none());
        growth.failed();
        assert!(!growth.is_under_way());
    }
}
