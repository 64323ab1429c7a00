//! The decision to take in workers that wait while the run goes on with fewer than it began with.
//!
//! A run grows between two steps: it holds the state after the step, ends the session, and begins
//! anew with more workers, as after a loss. So growth repeats no step. A try that does not make the
//! run larger for long is repeated after a pause, which doubles each time. So a worker that asks
//! again and again and never comes, or that dies each time, costs few sessions.

/// A session lasts if it computes this many steps, and not fewer than the pause.
const LASTING_STEPS: u64 = 10;

/// A run after a completed step.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Boundary {
    /// The completed step.
    pub step: u64,
    /// The steps of the whole run.
    pub steps: u64,
    /// The workers of the session.
    pub workers: usize,
    /// The workers that ask for a place.
    pub waiting: usize,
    /// Whether the state after this step can be held and resumed from: no gradients wait, no lost
    /// step is still to be repeated, no checkpoint would be cut off, and the run is not asked to
    /// stop.
    pub can_hold_state: bool,
}

/// Decides after every completed step whether the run takes in workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Growth {
    /// The workers that the run began with. It never has more.
    initial: usize,
    /// The number of workers at the last try, until its result is known.
    tried: Option<usize>,
    /// The larger session, until it has lasted.
    grown: Option<Grown>,
    /// The steps between a try that failed and the next.
    pause: u64,
    /// The first step after which the run may try again.
    not_before: u64,
}

/// A session that has become larger.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Grown {
    /// Its first step.
    since: u64,
    workers: usize,
}

impl Growth {
    /// The growth of a run that began with `initial` workers.
    pub(super) fn new(initial: usize) -> Self {
        Growth { initial, tried: None, grown: None, pause: 0, not_before: 0 }
    }

    /// Returns the number of workers to begin anew with, if the run takes in some. `fits` tells
    /// whether it can continue with a number of workers. Call it after every completed step: the
    /// first call after a try learns the result from the number of workers.
    pub(super) fn decide(&mut self, at: Boundary, fits: impl Fn(usize) -> bool) -> Option<usize> {
        self.note_duration(at);
        self.note_result(at);
        let is_pausing = at.step < self.not_before;
        // Before the last step it is too late: the others compute that step sooner.
        let is_ending = at.step.saturating_add(1) >= at.steps;
        if !at.can_hold_state || is_pausing || is_ending {
            return None;
        }
        let most = self.initial.min(at.workers.saturating_add(at.waiting));
        let workers = (at.workers.saturating_add(1)..=most).rev().find(|workers| fits(*workers))?;
        self.tried = Some(at.workers);
        Some(workers)
    }

    /// Ends the pause once a larger session has lasted. If it loses workers before, the try that
    /// made it larger has failed, too.
    fn note_duration(&mut self, at: Boundary) {
        let Some(Grown { since, workers }) = self.grown else { return };
        if at.workers < workers {
            self.grown = None;
            self.lengthen_pause(at.step);
        } else if at.step.saturating_sub(since) >= LASTING_STEPS.max(self.pause) {
            self.grown = None;
            self.pause = 0;
        }
    }

    /// Learns the result of a try. It fails if the state cannot be held, or if the newcomers do not
    /// come or are lost before the first step.
    fn note_result(&mut self, at: Boundary) {
        let Some(before) = self.tried.take() else { return };
        if at.workers > before {
            self.grown = Some(Grown { since: at.step, workers: at.workers });
        } else {
            self.lengthen_pause(at.step);
        }
    }

    fn lengthen_pause(&mut self, step: u64) {
        self.pause = self.pause.saturating_mul(2).max(1);
        self.not_before = step.saturating_add(self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: u64 = 1000;

    /// A run of four workers at first that now has two, while two others wait.
    fn boundary(step: u64) -> Boundary {
        Boundary { step, steps: STEPS, workers: 2, waiting: 2, can_hold_state: true }
    }

    /// The first decision of a run of four workers.
    fn first(at: Boundary) -> Option<usize> {
        Growth::new(4).decide(at, |_| true)
    }

    #[test]
    fn waiting_workers_are_taken_in_up_to_the_initial_number() {
        for (workers, waiting, decided) in [
            (2, 0, None),
            (2, 1, Some(3)),
            (2, 2, Some(4)),
            (2, 9, Some(4)),
            (3, usize::MAX, Some(4)),
            (4, 1, None),
            // More than at first, as no run has.
            (5, 1, None),
        ] {
            let at = Boundary { workers, waiting, ..boundary(1) };
            assert_eq!(first(at), decided, "{workers} and {waiting}");
        }
    }

    #[test]
    fn the_largest_number_that_fits_is_chosen() {
        let of = |workers| Boundary { workers, ..boundary(1) };
        let decide =
            |at, numbers: &[usize]| Growth::new(4).decide(at, |workers| numbers.contains(&workers));
        assert_eq!(decide(of(2), &[1, 2, 3]), Some(3));
        assert_eq!(decide(of(1), &[1, 2, 3]), Some(3));
        assert_eq!(decide(of(1), &[1, 2, 4]), Some(2));
        assert_eq!(decide(of(2), &[1, 2]), None);
        // A number that does not fit is no try, so it costs no pause.
        let mut growth = Growth::new(4);
        assert_eq!(growth.decide(boundary(1), |_| false), None);
        assert_eq!(growth.decide(boundary(2), |_| true), Some(4));
    }

    #[test]
    fn a_run_that_is_almost_done_does_not_grow() {
        assert_eq!(first(boundary(STEPS - 2)), Some(4));
        assert_eq!(first(boundary(STEPS - 1)), None);
        assert_eq!(first(boundary(STEPS)), None);
        assert_eq!(first(boundary(u64::MAX)), None);
        assert_eq!(first(Boundary { steps: 0, ..boundary(0) }), None);
    }

    #[test]
    fn a_state_that_cannot_be_held_delays_growth() {
        let mut growth = Growth::new(4);
        let accumulating = Boundary { can_hold_state: false, ..boundary(1) };
        assert_eq!(growth.decide(accumulating, |_| true), None);
        assert_eq!(growth.decide(boundary(2), |_| true), Some(4));
    }

    /// The steps after which a run tries that never becomes larger.
    fn tries(growth: &mut Growth, steps: std::ops::Range<u64>) -> Vec<u64> {
        steps.filter(|step| growth.decide(boundary(*step), |_| true).is_some()).collect()
    }

    #[test]
    fn the_pause_doubles_after_each_try_that_fails() {
        let mut growth = Growth::new(4);
        assert_eq!(tries(&mut growth, 1..60), [1, 3, 6, 11, 20, 37]);
        let all = tries(&mut Growth::new(4), 1..STEPS).len();
        assert!(all <= 10, "{all} tries in {STEPS} steps");
    }

    #[test]
    fn a_larger_session_that_lasts_ends_the_pause() {
        let mut growth = Growth::new(4);
        assert_eq!(tries(&mut growth, 1..7), [1, 3, 6]);
        // One of two newcomers came, and the other is taken in at once.
        let larger = |step| Boundary { workers: 3, ..boundary(step) };
        assert_eq!(growth.decide(larger(7), |_| true), Some(4));
        for step in 8..=8 + LASTING_STEPS {
            let whole = Boundary { workers: 4, ..boundary(step) };
            assert_eq!(growth.decide(whole, |_| true), None);
        }
        assert_eq!(tries(&mut growth, 19..26), [19, 21, 24]);
    }

    /// The steps after which a run grows whose newcomers die after this many steps, and come again.
    fn growths(life: u64) -> Vec<u64> {
        let mut growth = Growth::new(4);
        let (mut grown, mut last) = (Vec::new(), 0);
        for step in 1..STEPS {
            let workers = if step <= last { 4 } else { 2 };
            if growth.decide(Boundary { workers, ..boundary(step) }, |_| true).is_some() {
                grown.push(step);
                last = step + life;
            }
        }
        grown
    }

    #[test]
    fn newcomers_that_die_again_and_again_cost_few_sessions() {
        let soon = growths(1);
        assert_eq!(soon[..6], [1, 4, 8, 14, 24, 42]);
        assert!(soon.len() <= 10, "{soon:?}");
        // A session that lasts was worth its start.
        assert_eq!(growths(LASTING_STEPS + 2)[..3], [1, 14, 27]);
    }

    /// The result of a try shows at the next step, also if that step is repeated or nobody waits.
    #[test]
    fn a_loss_soon_after_growth_is_a_failed_try() {
        let mut growth = Growth::new(4);
        assert_eq!(growth.decide(boundary(5), |_| true), Some(4));
        let grown = Boundary { workers: 4, waiting: 0, ..boundary(6) };
        assert_eq!(growth.decide(grown, |_| true), None);
        let repeated = Boundary { can_hold_state: false, ..boundary(6) };
        assert_eq!(growth.decide(repeated, |_| true), None);
        assert_eq!(tries(&mut growth, 7..13), [7, 10]);
    }
}
