//! Workers that come and go at given events.

use pipeline::ids::WorkerId;
use pipeline::replicas::StagePlacement;
use std::collections::BTreeMap;

/// What happens at an event.
pub enum Change {
    Come,
    Go(WorkerId),
}

/// Who comes and goes, and who has.
#[derive(Default)]
pub struct Churn {
    /// By event: somebody comes, or one goes that is chosen by this number.
    due: BTreeMap<u64, Option<u64>>,
    /// Who has the stages: of each stage one always stays, for with the last its weights would go.
    pub members: StagePlacement,
    /// Who has come and of whom nobody has taken note.
    pub arrived: Vec<WorkerId>,
    /// Who has gone, as the boss knows.
    pub gone: Vec<WorkerId>,
    workers: u16,
}

impl Churn {
    pub fn new(members: StagePlacement, due: BTreeMap<u64, Option<u64>>) -> Self {
        let workers = members.workers() as u16;
        Churn { due, members, workers, ..Churn::default() }
    }

    /// From now on nobody comes or goes.
    pub fn end(&mut self) {
        self.due.clear();
    }

    pub fn at(&mut self, event: u64, alive: impl Fn(WorkerId) -> bool) -> Option<Change> {
        match self.due.remove(&event)? {
            None => {
                self.workers += 1;
                Some(Change::Come)
            }
            Some(choice) => {
                let spared = |worker: &WorkerId| {
                    let stays = |of: &[WorkerId]| of.iter().any(|other| other != worker && alive(*other));
                    self.members.iter().all(|(_, of)| stays(of))
                };
                let all = (0..self.workers).map(WorkerId);
                let possible: Vec<WorkerId> = all.filter(|worker| alive(*worker) && spared(worker)).collect();
                let place = choice as usize % possible.len().max(1);
                possible.get(place).map(|worker| Change::Go(*worker))
            }
        }
    }
}
