//! Workers that join and leave at given events.

use pipeline::ids::WorkerId;
use pipeline::replicas::StagePlacement;
use std::collections::BTreeMap;

/// The change at an event.
pub enum Change {
    Come,
    Go(WorkerId),
    /// A worker is told to go.
    Told(WorkerId),
}

/// The planned joins and leaves, and their state.
#[derive(Default)]
pub struct Churn {
    /// By event: `None` is a join. A number chooses the worker that leaves.
    due: BTreeMap<u64, Option<u64>>,
    /// The workers that are told to go, by event.
    pub told: BTreeMap<u64, WorkerId>,
    /// Workers that are told to go, as far as the boss knows.
    pub leaving: Vec<WorkerId>,
    /// The workers of each stage. A core of each always stays, because its weights would be lost
    /// with the last.
    pub members: StagePlacement,
    /// Workers that have joined and that the boss does not know yet.
    pub arrived: Vec<WorkerId>,
    /// Workers that have left, as far as the boss knows.
    pub gone: Vec<WorkerId>,
    /// The workers of each stage that always stay.
    pub core: usize,
    workers: u16,
}

impl Churn {
    pub fn new(members: StagePlacement, due: BTreeMap<u64, Option<u64>>) -> Self {
        let workers = members.workers() as u16;
        Churn { due, members, workers, core: 1, ..Churn::default() }
    }

    /// Ends all joins and leaves.
    pub fn end(&mut self) {
        self.due.clear();
    }

    /// Whether a core of each stage stays if this worker goes.
    pub fn spares(&self, worker: WorkerId, lasts: impl Fn(WorkerId) -> bool) -> bool {
        let others =
            |of: &[WorkerId]| of.iter().filter(|other| **other != worker && lasts(**other)).count();
        self.members.iter().all(|(_, of)| others(of) >= self.core)
    }

    pub fn at(&mut self, event: u64, lasts: impl Fn(WorkerId) -> bool) -> Option<Change> {
        if let Some(worker) = self.told.remove(&event) {
            return Some(Change::Told(worker));
        }
        match self.due.remove(&event)? {
            None => {
                self.workers += 1;
                Some(Change::Come)
            }
            Some(choice) => {
                let all = (0..self.workers).map(WorkerId);
                let possible: Vec<WorkerId> =
                    all.filter(|worker| lasts(*worker) && self.spares(*worker, &lasts)).collect();
                let place = choice as usize % possible.len().max(1);
                let worker = *possible.get(place)?;
                Some(if choice % 3 == 0 { Change::Told(worker) } else { Change::Go(worker) })
            }
        }
    }
}
