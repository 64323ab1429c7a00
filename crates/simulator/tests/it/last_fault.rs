//! The last fault of a run, over all its memberships, and the progress that the run must make from
//! then on.

use crate::planned_faults::WORKER_GIVES_UP;
use std::fmt;

/// The most that may follow the last fault, in quiet runs. At most two memberships follow: the one
/// that the last fault strikes may run to its end, and one more runs from the last state. Each may
/// take more events than a quiet one: it restores a state, the boss relays, and a pool repeats a
/// step for every worker that is lost in it. Fewer quiet runs would do. A run without progress goes
/// on for ever and exceeds any bound.
const QUIET_RUNS: u64 = 8;

/// More events, because the quiet runs may be short beside the state that they restore.
const MORE_EVENTS: u64 = 1000;

/// The longest time without progress after a change of members. A loss is known after
/// `WORKER_GIVES_UP` and some delays, and a direct link is given up after three seconds.
const RECONNECTION: u64 = 2 * WORKER_GIVES_UP;

/// The most memberships after the one that the last fault strikes. Nothing of a membership reaches
/// the next, so nothing fails in that one.
const MOST_MEMBERSHIPS: u64 = 1;

/// Events, and simulated time in microseconds.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub struct Spent {
    pub events: u64,
    pub time: u64,
}

impl Spent {
    /// The most that may follow the last fault, if a quiet run takes this, and the members change
    /// so often.
    pub fn bound(self, changes: u64) -> Spent {
        Spent {
            events: QUIET_RUNS * self.events + MORE_EVENTS,
            time: QUIET_RUNS * self.time + changes * RECONNECTION,
        }
    }
}

/// The last fault, and what follows it.
#[derive(Clone, Default, Debug)]
pub struct LastFault {
    /// The name of the run in a failure.
    pub run: String,
    /// The number of events until then.
    pub ahead: u64,
    /// The number of workers that stay from then on, or join. In a pool it is that of each stage,
    /// and these stay from the beginning, because their state would be lost with them.
    pub core: usize,
    /// Whether all other workers are killed then.
    pub only_core: bool,
    /// The most that may follow.
    pub most: Spent,
    /// What followed so far.
    pub spent: Spent,
    /// The number of memberships that began after it.
    pub memberships: u64,
}

impl LastFault {
    /// Whether no fault follows any more.
    pub fn is_over(&self) -> bool {
        self.ahead == 0
    }

    pub fn is_overdue(&self) -> bool {
        self.spent.events > self.most.events || self.spent.time > self.most.time
    }

    /// Another membership begins after the last fault.
    pub fn begin_membership(&mut self) {
        self.memberships += 1;
        assert!(self.memberships <= MOST_MEMBERSHIPS, "not done: {self}");
    }
}

impl fmt::Display for LastFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LastFault { run, ahead, spent, most, memberships, .. } = self;
        if !self.is_over() {
            return write!(f, "{run}: {ahead} events before the last fault");
        }
        write!(
            f,
            "{run}: {} events and {} microseconds after the last fault, of at most {} and {}; \
             {memberships} memberships began since",
            spent.events, spent.time, most.events, most.time
        )
    }
}
