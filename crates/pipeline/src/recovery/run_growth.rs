//! Takes in workers that wait while a run goes on with fewer than at first.

use super::candidates::{Candidate, Candidates, Check, Problem};
use super::growth::Growth;
use super::{Boundary, KeptPlaces, LastSession};
use crate::ids::WorkerId;
use std::cell::OnceCell;
use std::collections::VecDeque;

/// The most unfit workers that are remembered. Anybody with the ticket may ask for a place.
const MOST_UNFIT: usize = 64;

/// The growth of a run, back to its initial number of workers.
pub struct RunGrowth<W> {
    /// The workers that the run began with.
    initial: usize,
    growth: Growth,
    phase: Phase<W>,
    /// The workers that may hold state of the run: those of the last session that has completed a
    /// step, or that began without growth.
    known: Vec<W>,
    /// The waiting workers that the last decision took in.
    chosen: Vec<W>,
    /// The waiting workers with which the run cannot grow, so that plans are not made in each step.
    refused: Vec<W>,
    /// The waiting workers beside which no session could start. One of them would end the run if it
    /// took the place of a worker that is lost.
    unfit: VecDeque<W>,
}

/// The decision after a completed step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrowthDecision<W> {
    /// The number of workers with which a new session begins. `None` if the run stays in this one.
    pub workers: Option<usize>,
    /// Why workers are not taken in. They are not told again while the same workers wait.
    pub problems: Vec<Problem<W>>,
}

/// The progress of a growth.
enum Phase<W> {
    /// There is none.
    Settled,
    /// The next session is to take in these workers.
    Awaits(Vec<W>),
    /// The session has taken in these workers, and has completed no step.
    TookIn(Vec<WorkerId>),
    /// The session that took in workers failed. The next one begins without them.
    Failed,
}

impl<W: Candidate> RunGrowth<W> {
    /// The growth of a run with this number of workers at first.
    pub fn new(initial: usize) -> Self {
        RunGrowth {
            initial,
            growth: Growth::new(initial),
            phase: Phase::Settled,
            known: Vec::new(),
            chosen: Vec::new(),
            refused: Vec::new(),
            unfit: VecDeque::new(),
        }
    }

    /// Decides after a completed step whether the run begins a new session with more workers.
    /// `waiting` are the workers that could join, and `check` tells whether a session can start.
    pub fn decide(
        &mut self,
        at: Boundary,
        waiting: &[W],
        check: impl Fn(&[W]) -> Check,
    ) -> GrowthDecision<W> {
        let RunGrowth { known, growth, refused, initial, .. } = self;
        let (known, initial) = (&known[..], *initial);
        // A member whose link broke asks for a place before the boss misses it.
        let is_known = |info: &W| known.iter().any(|one| one.is_same_process(info));
        let waiting: Vec<_> = waiting.iter().filter(|info| !is_known(info)).collect();
        let is_refused = refused.iter().eq(waiting.iter().copied());
        let candidates = OnceCell::new();
        let fits = |workers: usize| {
            let choose = || Candidates::choose(known, &waiting, initial, &check);
            !is_refused && candidates.get_or_init(choose).fits(workers)
        };
        let workers = growth.decide(Boundary { waiting: waiting.len(), ..at }, fits);
        let Some(mut candidates) = candidates.into_inner() else {
            return GrowthDecision { workers, problems: Vec::new() };
        };
        let problems = std::mem::take(&mut candidates.problems);
        self.note_unfit(&waiting, std::mem::take(&mut candidates.unfit));
        match workers {
            Some(workers) => self.chosen = candidates.newcomers(self.known.len(), workers),
            None => self.refused = waiting.into_iter().cloned().collect(),
        }
        GrowthDecision { workers, problems }
    }

    /// Remembers which of the waiting workers are unfit.
    fn note_unfit(&mut self, waiting: &[&W], unfit: Vec<W>) {
        self.unfit.retain(|one| !waiting.iter().any(|info| info.is_same_process(one)));
        self.unfit.extend(unfit);
        let older = self.unfit.len().saturating_sub(MOST_UNFIT);
        self.unfit.drain(..older);
    }

    /// The next session is to take in the workers of the last decision.
    pub fn begin(&mut self) {
        self.phase = Phase::Awaits(std::mem::take(&mut self.chosen));
    }

    /// Whether a growth has begun, and no step is completed since.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.phase, Phase::Settled)
    }

    /// The last session, of which `lost` of the `workers` may not come again.
    pub fn last_session(&self, workers: usize, lost: usize) -> LastSession<W> {
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
    pub fn known(&self) -> &[W] {
        &self.known
    }

    /// Workers have joined again, and with them these newcomers.
    pub fn workers_rejoined(&mut self, newcomers: Vec<WorkerId>) {
        if let Phase::Awaits(_) = self.phase {
            self.phase = Phase::TookIn(newcomers);
        }
    }

    /// A session begins with these workers.
    pub fn session_begins(&mut self, workers: &[W]) {
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
    pub fn newcomers(&self) -> Option<&[WorkerId]> {
        match &self.phase {
            Phase::Awaits(_) => Some(&[]),
            Phase::TookIn(newcomers) => Some(&newcomers[..]).filter(|all| !all.is_empty()),
            Phase::Settled | Phase::Failed => None,
        }
    }

    /// The session, with these workers, has completed a step.
    pub fn step_done(&mut self, workers: &[W]) {
        if self.is_under_way() {
            self.known = workers.to_vec();
            self.phase = Phase::Settled;
        }
    }

    /// The session failed.
    pub fn failed(&mut self) {
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
    use crate::recovery::Applicant;

    #[derive(Clone, PartialEq, Debug)]
    struct Process(u64);

    impl Applicant for Process {
        fn is_same_process(&self, other: &Self) -> bool {
            self == other
        }

        fn instance(&self) -> u64 {
            self.0
        }
    }

    impl Candidate for Process {
        fn is_device_alike(&self, _: &Self) -> bool {
            true
        }

        fn memory_bytes(&self) -> Option<u64> {
            None
        }

        fn another(&self, number: usize) -> Self {
            Process(1000 * number as u64 + self.0)
        }
    }

    fn worker(process: u64) -> Process {
        Process(process)
    }

    fn growth() -> RunGrowth<Process> {
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
    fn decide(growth: &mut RunGrowth<Process>, step: u64, waiting: &[Process]) -> Option<usize> {
        let waits = waiting.len();
        let at = Boundary { step, steps: 100, workers: 1, waiting: waits, can_hold_state: true };
        let odd = |members: &[Process]| match members.iter().all(|one| one.0 % 2 == 1) {
            true => Check::Fits,
            false => Check::Unfit("too little memory".into()),
        };
        growth.decide(at, waiting, odd).workers
    }

    #[test]
    fn a_worker_that_is_too_few_learns_how_many_suffice() {
        let mut growth = growth();
        let threes = |members: &[Process]| match members.len() {
            3 => Check::Fits,
            _ => Check::NoPlan,
        };
        let at = Boundary { step: 1, steps: 100, workers: 1, waiting: 1, can_hold_state: true };
        let decision = growth.decide(at, &[worker(2)], threes);
        let problems = vec![Problem::TooFew { waiting: 1, workers: 3 }];
        assert_eq!(decision, GrowthDecision { workers: None, problems });
        assert!(growth.decide(at, &[worker(2)], threes).problems.is_empty());
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
        let never = |_: &[Process]| {
            checked.set(checked.get() + 1);
            Check::Unfit("too little memory".into())
        };
        let at = Boundary { step: 1, steps: 100, workers: 1, waiting: 1, can_hold_state: true };
        for process in 2..1000 {
            let before = checked.get();
            let problems = growth.decide(at, &[worker(process)], never).problems;
            assert_eq!((problems.len(), checked.get() > before), (1, true));
            let before = checked.get();
            let again = growth.decide(at, &[worker(process)], never);
            assert_eq!(again, GrowthDecision { workers: None, problems: Vec::new() });
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
}
