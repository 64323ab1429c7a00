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
/// The longest wait, if workers suffice.
const LONGEST_WAIT: Duration = REJOIN_TIMEOUT.saturating_add(NEWCOMER_TIMEOUT);

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
    /// Those of them that took part, or that the boss started afresh. A spare is none of them: it
    /// cannot stand in for a worker that holds state.
    pub known: usize,
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
        let (since, timeout) = match joined {
            Rejoined { known, .. } if known < self.survivors => {
                (joined.since_begin, REJOIN_TIMEOUT)
            }
            Rejoined { workers, .. } if workers < expected => (joined.since_last, NEWCOMER_TIMEOUT),
            _ => (joined.since_last, SPARE_TIMEOUT),
        };
        let left = timeout.saturating_sub(since);
        // A worker that joins and leaves again and again does not keep the wait open.
        let left = left.min(LONGEST_WAIT.saturating_sub(joined.since_begin));
        if !left.is_zero() {
            return Sufficiency::OpenFor(left);
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
        let known = workers;
        Rejoined { workers, known, has_gap: false, since_begin: LATER, since_last: LATER }
    }

    /// Who joins.
    #[derive(Copy, Clone)]
    enum Comes {
        Survivor,
        Spare,
    }

    /// Plays a wait of 30 seconds at most, in which workers join at these milliseconds. Returns
    /// when it is decided, in milliseconds, and how.
    fn play(wait: &RejoinWait, arrivals: &[(u64, Comes)]) -> Option<(u64, Sufficiency)> {
        (0..30_000).find_map(|now| {
            let here = arrivals.iter().filter(|(at, _)| *at <= now);
            let last = here.clone().map(|(at, _)| *at).max().unwrap_or(0);
            let joined = Rejoined {
                workers: here.clone().count(),
                known: here.filter(|(_, who)| matches!(who, Comes::Survivor)).count(),
                has_gap: false,
                since_begin: Duration::from_millis(now),
                since_last: Duration::from_millis(now - last),
            };
            let decided = wait.sufficiency(joined);
            (!matches!(decided, OpenFor(_))).then_some((now, decided))
        })
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

    /// A survivor may be in the middle of a long task when the others join, and its part of the
    /// state may be nowhere else.
    #[test]
    fn a_spare_does_not_replace_a_survivor_that_is_slow() {
        use Comes::{Spare, Survivor};
        type Arrivals = &'static [(u64, Comes)];
        let cases: [(Arrivals, (u64, Sufficiency)); 5] = [
            (&[(0, Spare), (100, Survivor), (9000, Survivor)], (10_500, Enough(3))),
            (&[(0, Spare), (0, Spare), (9000, Survivor), (9000, Survivor)], (10_500, Enough(4))),
            (&[(0, Survivor), (14_000, Survivor), (14_500, Spare)], (16_000, Enough(3))),
            // A survivor does not come: it is lost, too.
            (&[(0, Spare), (100, Survivor)], (15_000, Enough(2))),
            (&[(0, Spare)], (15_000, Enough(1))),
        ];
        let failed = FailedSession { workers: 3, local: 0, lost: 1, newcomers: 0 };
        let growing = FailedSession { workers: 2, lost: 0, newcomers: 1, ..failed };
        for failed in [failed, growing] {
            let wait = RejoinWait::new(failed, 4, |_| true);
            for (arrivals, decided) in cases {
                assert_eq!(play(&wait, arrivals), Some(decided), "{failed:?}");
            }
        }
    }

    #[test]
    fn a_worker_that_joins_and_dies_again_and_again_does_not_keep_the_wait_open() {
        let seconds = Duration::from_secs;
        let after = |since_begin| {
            let since_last = Duration::from_millis(100);
            wait(0, 2).sufficiency(Rejoined { since_begin, since_last, ..joined(2) })
        };
        assert_eq!(after(seconds(5)), OpenFor(Duration::from_millis(1400)));
        assert_eq!(after(seconds(20)), OpenFor(seconds(1)));
        assert_eq!(after(seconds(21)), Enough(2));
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
        let (since_begin, since_last) = (REJOIN_TIMEOUT, Duration::ZERO);
        let soon = Rejoined { has_gap: true, since_begin, since_last, ..joined(3) };
        assert_eq!(wait(0, 1).sufficiency(soon), OpenFor(SPARE_TIMEOUT));
    }
}
