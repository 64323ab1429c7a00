//! Takes in workers that wait while a run goes on with fewer than at first.

use crate::events::Events;
use crate::train::candidates;
use crate::Builder;
use link::WorkerInfo;
use pipeline::ids::WorkerId;
use pipeline::recovery::{Boundary, Candidates, Check, Growth, KeptPlaces, LastSession, Problem};
use std::cell::OnceCell;
use std::collections::VecDeque;

/// The most unfit workers that are remembered. Anybody with the ticket may ask for a place.
const MOST_UNFIT: usize = 64;
/// The most warnings that are remembered, so that they are not repeated.
const MOST_TOLD: usize = 16;

/// The growth of a run, back to its initial number of workers.
pub(super) struct RunGrowth {
    /// The workers that the run began with.
    initial: usize,
    growth: Growth,
    phase: Phase,
    /// The workers that may hold state of the run: those of the last session that has completed a
    /// step, or that began without growth.
    known: Vec<WorkerInfo>,
    /// The waiting workers that the last decision took in.
    chosen: Vec<WorkerInfo>,
    /// The waiting workers with which the run cannot grow, so that plans are not made in each step.
    refused: Vec<WorkerInfo>,
    /// The waiting workers beside which no session could start. One of them would end the run if it
    /// took the place of a worker that is lost.
    unfit: VecDeque<WorkerInfo>,
    /// The last warnings that the user was told.
    told: VecDeque<String>,
}

/// The progress of a growth.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Settled,
    /// The next session is to take in these workers.
    Awaits(Vec<WorkerInfo>),
    /// The session has taken in these workers, and has completed no step.
    TookIn(Vec<WorkerId>),
    /// The session that took in workers failed. The next one begins without them.
    Failed,
}

impl RunGrowth {
    /// The growth of a run with this number of workers at first.
    pub(super) fn new(initial: usize) -> Self {
        RunGrowth {
            initial,
            growth: Growth::new(initial),
            phase: Phase::Settled,
            known: Vec::new(),
            chosen: Vec::new(),
            refused: Vec::new(),
            unfit: VecDeque::new(),
            told: VecDeque::new(),
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
        let check = |members: &[WorkerInfo]| candidates::check(&builder(), members);
        let (decided, problems) = self.decide_with(at, waiting, check);
        for problem in problems {
            let warning = candidates::warning(&problem);
            if self.is_news(&warning) {
                events.warn(warning);
            }
        }
        decided
    }

    /// The same. Also returns why workers are not taken in.
    fn decide_with(
        &mut self,
        at: Boundary,
        waiting: &[WorkerInfo],
        check: impl Fn(&[WorkerInfo]) -> Check,
    ) -> (Option<usize>, Vec<Problem<WorkerInfo>>) {
        let RunGrowth { known, growth, refused, initial, .. } = self;
        let (known, initial) = (&known[..], *initial);
        // A member whose link broke asks for a place before the boss misses it.
        let is_known = |info: &WorkerInfo| known.iter().any(|one| one.is_same_process(info));
        let waiting: Vec<_> = waiting.iter().filter(|info| !is_known(info)).collect();
        let is_refused = refused.iter().eq(waiting.iter().copied());
        let candidates = OnceCell::new();
        let fits = |workers: usize| {
            let choose = || Candidates::choose(known, &waiting, initial, &check);
            !is_refused && candidates.get_or_init(choose).fits(workers)
        };
        let decided = growth.decide(Boundary { waiting: waiting.len(), ..at }, fits);
        let Some(mut candidates) = candidates.into_inner() else { return (decided, Vec::new()) };
        let problems = std::mem::take(&mut candidates.problems);
        self.note_unfit(&waiting, std::mem::take(&mut candidates.unfit));
        match decided {
            Some(workers) => self.chosen = candidates.newcomers(self.known.len(), workers),
            None => self.refused = waiting.into_iter().cloned().collect(),
        }
        (decided, problems)
    }

    /// Remembers which of the waiting workers are unfit.
    fn note_unfit(&mut self, waiting: &[&WorkerInfo], unfit: Vec<WorkerInfo>) {
        self.unfit.retain(|one| !waiting.iter().any(|info| info.is_same_process(one)));
        self.unfit.extend(unfit);
        let older = self.unfit.len().saturating_sub(MOST_UNFIT);
        self.unfit.drain(..older);
    }

    /// Whether the user was not told this lately. An unfit worker may be started again and again.
    fn is_news(&mut self, warning: &str) -> bool {
        if self.told.iter().any(|told| told == warning) {
            return false;
        }
        self.told.push_back(warning.to_string());
        let older = self.told.len().saturating_sub(MOST_TOLD);
        self.told.drain(..older);
        true
    }

    /// The next session is to take in the workers of the last decision.
    pub(super) fn begin(&mut self) {
        self.phase = Phase::Awaits(std::mem::take(&mut self.chosen));
    }

    /// Whether a growth has begun, and no step is completed since.
    pub(super) fn is_under_way(&self) -> bool {
        self.phase != Phase::Settled
    }

    /// The last session, of which `lost` of the `workers` may not come again.
    pub(super) fn last_session(&self, workers: usize, lost: usize) -> LastSession<WorkerInfo> {
        let (kept, known) = (KeptPlaces::Remaining, self.known.clone());
        let (newcomers, unfit) = (Vec::new(), self.unfit.iter().cloned().collect());
        let last = LastSession { workers, lost, newcomers, kept, known, unfit };
        match &self.phase {
            // Another one that waits may not be fit, or make the number one that has no plan.
            Phase::Awaits(newcomers) => {
                LastSession { newcomers: newcomers.clone(), kept: KeptPlaces::All, ..last }
            }
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
        // Beside these they are fit, and the others may come again without them.
        self.unfit.retain(|one| !workers.iter().any(|info| info.is_same_process(one)));
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
        growth.chosen = vec![worker(2), worker(3)];
        growth.begin();
        let last = growth.last_session(1, 0);
        assert_eq!((last.workers, last.kept), (1, KeptPlaces::All));
        assert_eq!((last.newcomers, last.known), (vec![worker(2), worker(3)], vec![worker(1)]));
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
        growth.begin();
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
        growth.begin();
        growth.workers_rejoined(Vec::new());
        growth.session_begins(&[worker(1)]);
        assert!(growth.is_under_way() && growth.newcomers().is_none());
        growth.failed();
        assert!(!growth.is_under_way());
    }

    /// After a step of a run of one worker that had three. Odd processes are fit.
    fn decide(growth: &mut RunGrowth, step: u64, waiting: &[WorkerInfo]) -> Option<usize> {
        let waits = waiting.len();
        let at = Boundary { step, steps: 100, workers: 1, waiting: waits, can_hold_state: true };
        let odd = |members: &[WorkerInfo]| match members.iter().all(|one| one.process % 2 == 1) {
            true => Check::Fits,
            false => Check::Unfit("too little memory".into()),
        };
        growth.decide_with(at, waiting, odd).0
    }

    #[test]
    fn a_worker_that_is_too_few_is_told_of_once() {
        let mut growth = growth();
        let threes = |members: &[WorkerInfo]| match members.len() {
            3 => Check::Fits,
            _ => Check::NoPlan,
        };
        let mut warnings = Vec::new();
        // Every time it has been started again.
        for process in 2..5 {
            let step = u64::from(process);
            let at = Boundary { step, steps: 100, workers: 1, waiting: 1, can_hold_state: true };
            let (decided, problems) = growth.decide_with(at, &[worker(process)], threes);
            assert_eq!(decided, None);
            let told = problems.iter().map(candidates::warning);
            warnings.extend(told.filter(|warning| growth.is_news(warning)));
        }
        assert_eq!(warnings, ["1 worker waits; the run can continue with 3"]);
    }

    /// The unfit one has the smaller process id, so it comes first.
    #[test]
    fn a_fit_worker_is_taken_in_and_an_unfit_one_stays_out() {
        let mut growth = growth();
        assert_eq!(decide(&mut growth, 1, &[worker(2), worker(3)]), Some(2));
        growth.begin();
        let last = growth.last_session(1, 0);
        assert_eq!((last.newcomers, last.unfit), (vec![worker(3)], vec![worker(2)]));
        growth.workers_rejoined(vec![WorkerId(1)]);
        let both = [worker(1), worker(3)];
        growth.session_begins(&both);
        growth.step_done(&both);
        // Also after a loss.
        assert_eq!(growth.last_session(2, 1).unfit, [worker(2)]);
        // Beside others it is fit.
        growth.session_begins(&[worker(2), worker(1)]);
        assert!(growth.last_session(2, 1).unfit.is_empty());
    }

    #[test]
    fn unfit_workers_are_checked_once_and_remembered_for_a_while() {
        let mut growth = growth();
        let checked = std::cell::Cell::new(0);
        let never = |_: &[WorkerInfo]| {
            checked.set(checked.get() + 1);
            Check::Unfit("too little memory".into())
        };
        let at = Boundary { step: 1, steps: 100, workers: 1, waiting: 1, can_hold_state: true };
        for process in 2..1000 {
            let before = checked.get();
            let (_, problems) = growth.decide_with(at, &[worker(process)], never);
            assert_eq!((problems.len(), checked.get() > before), (1, true));
            let before = checked.get();
            assert_eq!(growth.decide_with(at, &[worker(process)], never), (None, Vec::new()));
            assert_eq!(checked.get(), before, "a plan in each step");
        }
        assert_eq!(growth.unfit.len(), MOST_UNFIT);
    }

    /// Its link broke, and the boss does not miss it yet.
    #[test]
    fn a_member_that_asks_for_a_place_does_not_wait() {
        let mut growth = growth();
        assert_eq!(decide(&mut growth, 1, &[worker(1)]), None);
        assert_eq!(decide(&mut growth, 2, &[worker(1), worker(3)]), Some(2));
        assert_eq!(growth.chosen, [worker(3)]);
    }

    #[test]
    fn a_warning_is_told_once_and_few_are_remembered() {
        let mut growth = growth();
        assert!(growth.is_news("a") && !growth.is_news("a"));
        assert!((0..1000).all(|n| growth.is_news(&n.to_string())));
        assert_eq!(growth.told.len(), MOST_TOLD);
        assert!(!growth.is_news("999") && growth.is_news("a"));
    }
}
