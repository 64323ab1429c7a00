//! What is done to a run at given events, and to given frames.

use pipeline::ids::WorkerId;
use std::collections::{BTreeMap, BTreeSet};

/// A boss that hears nothing for so long gives a worker up, in microseconds; see `crates/link/src/quic/endpoint.rs`.
pub const BOSS_GIVES_UP: u64 = 3_000_000;
/// The same between two workers.
pub const WORKER_GIVES_UP: u64 = 4_000_000;

/// What happens at an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Strike {
    /// A worker's process is killed.
    Kill(WorkerId),
    /// A worker does nothing for so long, which is too short for anybody to give it up.
    Pause(WorkerId, u64),
    /// A worker does nothing for so long that it is given up; then it goes on, until it learns of that.
    Silence(WorkerId),
    /// Nothing passes between these workers and all others, the boss among them, for so long, which is too short for
    /// anybody to give anyone up.
    Hold(BTreeSet<WorkerId>, u64),
    /// Nothing passes between these workers and all others until they have given each other up.
    Split(BTreeSet<WorkerId>),
    /// The boss's process is killed.
    KillBoss,
}

impl Strike {
    /// The same where there are so many workers.
    pub fn among(self, workers: u16) -> Self {
        let here = |far: BTreeSet<WorkerId>| far.into_iter().filter(|worker| worker.0 < workers).collect();
        match self {
            Strike::Hold(far, time) => Strike::Hold(here(far), time),
            Strike::Split(far) => Strike::Split(here(far)),
            other => other,
        }
    }

    /// Whether the run cannot go on as it is.
    pub fn costs(&self) -> bool {
        !matches!(self, Strike::Pause(..) | Strike::Hold(..))
    }
}

/// What happens to a frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Mishap {
    /// It is on its way for so much longer, and so is all that is behind it on an ordered stream.
    Late(u64),
    /// Its sender sends it twice: where frames keep their order the second is right behind the first, else it is on its way for
    /// so much longer.
    Twice(u64),
}

/// All that is done to one membership of a run.
#[derive(Clone, Default, Debug)]
pub struct Strikes {
    /// By event.
    pub events: BTreeMap<u64, Strike>,
    /// By the frame's number, those left out that a worker sends to itself.
    pub frames: BTreeMap<u64, Mishap>,
}

impl Strikes {
    pub fn at(event: u64, strike: Strike) -> Self {
        Strikes { events: BTreeMap::from([(event, strike)]), ..Strikes::default() }
    }

    pub fn of(frame: u64, mishap: Mishap) -> Self {
        Strikes { frames: BTreeMap::from([(frame, mishap)]), ..Strikes::default() }
    }
}

/// What came of it.
#[derive(Default)]
pub struct Struck {
    pub strikes: Vec<Strike>,
    pub mishaps: Vec<Mishap>,
    /// The boss's process is gone.
    pub boss_killed: bool,
    /// Workers that the boss knows to be lost.
    pub given_up: BTreeSet<WorkerId>,
}

impl Struck {
    /// Whether a request may fail for it.
    pub fn costs(&self) -> bool {
        self.strikes.iter().any(Strike::costs) || self.repeats()
    }

    /// Whether some frame was sent twice.
    pub fn repeats(&self) -> bool {
        self.mishaps.iter().any(|mishap| matches!(mishap, Mishap::Twice(_)))
    }
}
