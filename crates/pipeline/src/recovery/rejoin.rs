//! The wait for workers after a loss, or for growth: how many suffice, and how long the others may
//! still come.

use core::time::Duration;

/// The time to wait for a spare once all remaining workers have joined again. A spare worker asks
/// for a place every second.
const SPARE_TIMEOUT: Duration = Duration::from_millis(1500);
/// The time to wait for a worker that the run takes in, once all that took part have joined again.
/// It asks again every second, or every five if a call of its was cut off.
const NEWCOMER_TIMEOUT: Duration = Duration::from_secs(6);
/// The time after which a missing worker counts as lost, too. A worker finishes its computation
/// before it joins again.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(15);

/// The workers of the session that failed, or that ended because the run takes in more workers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FailedSession {
    /// All of them.
    pub workers: usize,
    /// Those that the boss starts afresh.
    pub local: usize,
    /// Those of the others that may not come again.
    pub lost: usize,
    /// The workers that the run takes in beside them.
    pub newcomers: usize,
}

/// The workers to wait for after a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RejoinWait {
    /// The number of workers that may remain.
    survivors: usize,
    /// The number of workers that are expected beside them.
    newcomers: usize,
    /// Whether the run can continue with 0, 1, 2, ... workers.
    fits: Vec<bool>,
}

/// The workers that have joined again.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Rejoined {
    /// Their number.
    pub workers: usize,
    /// Whether a place before one of them is free, so that their numbers are not those of a run.
    pub has_gap: bool,
    /// The time since the wait began.
    pub since_begin: Duration,
    /// The time since the last of them joined.
    pub since_last: Duration,
}

/// Whether the workers that have joined suffice.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Sufficiency {
    /// The run can continue with this number.
    Enough(usize),
    /// It is decided after this time.
    OpenFor(Duration),
    /// The run cannot continue with so few.
    TooFew,
    /// It is decided once the workers behind a free place have joined again.
    Gap,
}

impl RejoinWait {
    /// The wait for the workers of a run with `places` workers at first. `fits` tells whether it
    /// can continue with a number of workers.
    pub fn new(failed: FailedSession, places: usize, fits: impl Fn(usize) -> bool) -> Self {
        let FailedSession { workers, local, lost, newcomers } = failed;
        // Local workers are started afresh.
        let survivors = local + workers.saturating_sub(local).saturating_sub(lost);
        let fits = (0..=places).map(|workers| workers > 0 && fits(workers)).collect();
        RejoinWait { survivors, newcomers, fits }
    }

    /// Whether the workers suffice that have joined so far.
    pub fn sufficiency(&self, joined: Rejoined) -> Sufficiency {
        let expected = self.survivors.saturating_add(self.newcomers);
        let (since, timeout) = match joined.workers {
            workers if workers >= expected => (joined.since_last, SPARE_TIMEOUT),
            workers if workers >= self.survivors => (joined.since_last, NEWCOMER_TIMEOUT),
            _ => (joined.since_begin, REJOIN_TIMEOUT),
        };
        if since < timeout {
            return Sufficiency::OpenFor(timeout.saturating_sub(since));
        }
        if joined.has_gap {
            return Sufficiency::Gap;
        }
        self.most_usable(joined.workers).map_or(Sufficiency::TooFew, Sufficiency::Enough)
    }

    /// The largest number of the workers `here` with which the run can continue.
    fn most_usable(&self, here: usize) -> Option<usize> {
        (1..=here).rev().find(|workers| self.fits.get(*workers) == Some(&true))
    }
}

#[cfg(test)]
mod tests {
    use super::Sufficiency::{Enough, Gap, OpenFor, TooFew};
    use super::*;

    const LATER: Duration = Duration::from_secs(100);

    /// A run of four workers that can continue with four or two.
    fn wait(local: usize, lost: usize) -> RejoinWait {
        let failed = FailedSession { workers: 4, local, lost, newcomers: 0 };
        RejoinWait::new(failed, 4, |workers| workers % 2 == 0)
    }

    fn joined(workers: usize) -> Rejoined {
        Rejoined { workers, has_gap: false, since_begin: LATER, since_last: LATER }
    }

    #[test]
    fn the_largest_number_that_fits_suffices() {
        let decided = [0, 1, 2, 3, 4, 5].map(|workers| wait(0, 1).sufficiency(joined(workers)));
        assert_eq!(decided, [TooFew, TooFew, Enough(2), Enough(2), Enough(4), Enough(4)]);
    }

    /// Survivors have longer than spares.
    #[test]
    fn missing_survivors_are_waited_for() {
        let seconds = Duration::from_secs;
        let after = |workers, since_last| {
            let joined = Rejoined { since_begin: seconds(10), since_last, ..joined(workers) };
            wait(0, 2).sufficiency(joined)
        };
        // Two of four are lost, so a second one may still come.
        assert_eq!(after(1, seconds(9)), OpenFor(seconds(5)));
        assert_eq!(after(2, seconds(1)), OpenFor(Duration::from_millis(500)));
        assert_eq!(after(2, SPARE_TIMEOUT), Enough(2));
        let late = Rejoined { since_begin: REJOIN_TIMEOUT, ..joined(1) };
        assert_eq!(wait(0, 2).sufficiency(late), TooFew);
    }

    /// Newcomers have longer than spares, and less than survivors.
    #[test]
    fn newcomers_are_waited_for_once_all_others_are_there() {
        let failed = FailedSession { workers: 2, local: 0, lost: 0, newcomers: 1 };
        let wait = RejoinWait::new(failed, 4, |_| true);
        let seconds = Duration::from_secs;
        let after = |workers, since_last| {
            let joined = Rejoined { since_begin: seconds(10), since_last, ..joined(workers) };
            wait.sufficiency(joined)
        };
        assert_eq!(after(1, seconds(9)), OpenFor(seconds(5)));
        assert_eq!(after(2, seconds(1)), OpenFor(seconds(5)));
        assert_eq!(after(2, NEWCOMER_TIMEOUT), Enough(2));
        assert_eq!(after(3, seconds(1)), OpenFor(Duration::from_millis(500)));
        assert_eq!(after(3, SPARE_TIMEOUT), Enough(3));
        // One more than expected may come.
        assert_eq!(after(4, Duration::ZERO), OpenFor(SPARE_TIMEOUT));
        assert_eq!(after(4, SPARE_TIMEOUT), Enough(4));
    }

    #[test]
    fn a_newcomer_and_a_survivor_that_do_not_come_cost_the_longer_wait() {
        let failed = FailedSession { workers: 4, local: 1, lost: 0, newcomers: usize::MAX };
        let wait = RejoinWait::new(failed, 4, |_| true);
        let late = Rejoined { since_begin: REJOIN_TIMEOUT, ..joined(3) };
        assert_eq!(wait.sufficiency(late), Enough(3));
        let soon = Rejoined { since_begin: Duration::ZERO, ..joined(3) };
        assert_eq!(wait.sufficiency(soon), OpenFor(REJOIN_TIMEOUT));
    }

    #[test]
    fn local_workers_are_no_loss() {
        let soon = Rejoined { since_begin: Duration::ZERO, ..joined(3) };
        assert_eq!(wait(3, 1).sufficiency(soon), Enough(2));
        assert_eq!(wait(3, 0).sufficiency(soon), OpenFor(REJOIN_TIMEOUT));
        // More are lost than the session had.
        assert_eq!(wait(3, 9).sufficiency(soon), Enough(2));
    }

    #[test]
    fn workers_behind_a_free_place_join_again_first() {
        assert_eq!(wait(0, 1).sufficiency(Rejoined { has_gap: true, ..joined(3) }), Gap);
        let soon = Rejoined { has_gap: true, since_last: Duration::ZERO, ..joined(3) };
        assert_eq!(wait(0, 1).sufficiency(soon), OpenFor(SPARE_TIMEOUT));
    }
}
