//! Faults at given events of a run, and of given frames; and workers that come while a run goes on.

use crate::process::Process;
use pipeline::ids::WorkerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The silence after which a boss gives a worker up, in microseconds; see
/// `crates/link/src/quic/endpoint.rs`.
pub const BOSS_GIVES_UP: u64 = 3_000_000;
/// The silence after which a worker gives another worker up.
pub const WORKER_GIVES_UP: u64 = 4_000_000;

/// A fault at an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlannedFault {
    /// A worker's process is killed.
    Kill(WorkerId),
    /// A worker does nothing for this time, which is too short for it to be given up.
    Pause(WorkerId, u64),
    /// A worker pauses until it is given up. Then it continues until it learns of that.
    Silence(WorkerId),
    /// Nothing passes between these workers and all others, including the boss, for this time. It
    /// is too short for any of them to be given up.
    ShortPartition(BTreeSet<WorkerId>, u64),
    /// Nothing passes between these workers and all others until they have given each other up.
    Partition(BTreeSet<WorkerId>),
    /// The boss's process is killed.
    KillBoss,
    /// A direct link that is up breaks, if there is any.
    BreakLink,
    /// A worker comes, and asks for a place from then on.
    Come,
    /// A worker that asks for a place dies, if there is any.
    Gone,
}

impl PlannedFault {
    /// The same fault in a fleet of `workers` workers.
    pub fn among(self, workers: u16) -> Self {
        let here =
            |far: BTreeSet<WorkerId>| far.into_iter().filter(|worker| worker.0 < workers).collect();
        match self {
            PlannedFault::ShortPartition(far, time) => {
                PlannedFault::ShortPartition(here(far), time)
            }
            PlannedFault::Partition(far) => PlannedFault::Partition(here(far)),
            other => other,
        }
    }

    /// Whether the run needs recovery to continue.
    pub fn needs_recovery(&self) -> bool {
        !matches!(
            self,
            PlannedFault::Pause(..)
                | PlannedFault::ShortPartition(..)
                | PlannedFault::Come
                | PlannedFault::Gone
        )
    }
}

/// A fault of a frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FrameFault {
    /// It arrives this much later, and so do all frames behind it on an ordered stream.
    Delay(u64),
    /// Its sender sends it twice. On an ordered stream the second is right behind the first;
    /// otherwise it arrives this much later.
    Duplicate(u64),
}

/// The faults of one membership of a run.
#[derive(Clone, Default, Debug)]
pub struct PlannedFaults {
    /// By event.
    pub events: BTreeMap<u64, PlannedFault>,
    /// By the frame's number. Frames that a worker sends to itself have no number.
    pub frames: BTreeMap<u64, FrameFault>,
}

impl PlannedFaults {
    pub fn at(event: u64, fault: PlannedFault) -> Self {
        PlannedFaults { events: BTreeMap::from([(event, fault)]), ..PlannedFaults::default() }
    }

    /// The same, and another one at another event.
    pub fn and(mut self, event: u64, fault: PlannedFault) -> Self {
        self.events.entry(event).or_insert(fault);
        self
    }

    pub fn of(frame: u64, frame_fault: FrameFault) -> Self {
        PlannedFaults { frames: BTreeMap::from([(frame, frame_fault)]), ..PlannedFaults::default() }
    }
}

/// The results.
#[derive(Default)]
pub struct InjectedFaults {
    pub planned: Vec<PlannedFault>,
    pub frame_faults: Vec<FrameFault>,
    /// The boss's process is gone.
    pub boss_killed: bool,
    /// Workers that the boss knows to be lost.
    pub given_up: BTreeSet<WorkerId>,
    /// The workers that ask for a place.
    pub waiting: Vec<Process>,
    /// Those that come later, in this order.
    pub late: VecDeque<Process>,
}

impl InjectedFaults {
    /// Whether a request may fail for it.
    pub fn needs_recovery(&self) -> bool {
        self.planned.iter().any(PlannedFault::needs_recovery) || self.has_duplicates()
    }

    /// Whether some frame was sent twice.
    pub fn has_duplicates(&self) -> bool {
        self.frame_faults.iter().any(|frame_fault| matches!(frame_fault, FrameFault::Duplicate(_)))
    }
}
