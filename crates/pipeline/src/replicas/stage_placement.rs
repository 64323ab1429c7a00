//! The workers of each stage.

use crate::ids::{StageId, WorkerId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The most workers of a stage.
const MAX_REPLICAS: usize = 256;

/// The replicas of every stage: the workers that have it, the first replica first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StagePlacement(Vec<Vec<WorkerId>>);

impl StagePlacement {
    /// One worker for each stage.
    pub fn single(stage_placement: impl IntoIterator<Item = WorkerId>) -> Self {
        StagePlacement(stage_placement.into_iter().map(|home| vec![home]).collect())
    }

    /// These workers for each stage.
    pub fn new(stage_placement: Vec<Vec<WorkerId>>) -> Self {
        StagePlacement(stage_placement)
    }

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.0.len()
    }

    /// The number of workers: one more than the highest number.
    pub fn workers(&self) -> usize {
        self.0.iter().flatten().map(|w| w.0 as usize + 1).max().unwrap_or(0)
    }

    /// Every worker that has a stage, ascending.
    pub fn members(&self) -> Vec<WorkerId> {
        let members: BTreeSet<WorkerId> = self.0.iter().flatten().copied().collect();
        members.into_iter().collect()
    }

    /// Whether a worker has some stage.
    pub fn is_member(&self, worker: WorkerId) -> bool {
        self.0.iter().any(|workers| workers.contains(&worker))
    }

    /// The same placement, but each of these workers also has the stages of another.
    pub fn joined_by<'a>(
        &self,
        joining: impl IntoIterator<Item = (&'a WorkerId, &'a WorkerId)>,
    ) -> Self {
        let mut stage_placement = self.clone();
        for (worker, like) in joining {
            stage_placement
                .0
                .iter_mut()
                .filter(|of| of.contains(like))
                .for_each(|of| of.push(*worker));
        }
        stage_placement
    }

    /// The same placement without a worker. A stage may then have none.
    pub fn without(&self, worker: WorkerId) -> Self {
        self.of_those(|other| other != worker)
    }

    /// The same placement with the workers alone for which `stays` holds. A stage may then have
    /// none.
    pub fn of_those(&self, stays: impl Fn(WorkerId) -> bool) -> Self {
        let mut stage_placement = self.clone();
        stage_placement.0.iter_mut().for_each(|of| of.retain(|worker| stays(*worker)));
        stage_placement
    }

    /// The workers of a stage.
    pub fn of(&self, stage: StageId) -> &[WorkerId] {
        self.0.get(stage.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// The first replica of a stage, which reports for all of them.
    pub fn first(&self, stage: StageId) -> Option<WorkerId> {
        self.of(stage).first().copied()
    }

    /// The number of the replica of a stage that a worker is.
    pub fn replica(&self, stage: StageId, worker: WorkerId) -> Option<u16> {
        self.of(stage).iter().position(|w| *w == worker).map(|replica| replica as u16)
    }

    /// The replica that passes the boss's tensors on to this one. `None` for the first replica,
    /// which receives them from the boss. So each tensor travels along a binary tree, and no
    /// replica sends it more than twice.
    pub fn giver(&self, stage: StageId, worker: WorkerId) -> Option<WorkerId> {
        let after_first = usize::from(self.replica(stage, worker)?).checked_sub(1)?;
        self.of(stage).get(after_first / 2).copied()
    }

    /// The replicas of a stage to which this one passes the boss's tensors on.
    pub fn takers(&self, stage: StageId, worker: WorkerId) -> Vec<WorkerId> {
        let Some(replica) = self.replica(stage, worker) else { return Vec::new() };
        self.of(stage).iter().skip(2 * usize::from(replica) + 1).take(2).copied().collect()
    }

    /// Whether a worker has a stage.
    pub fn has(&self, stage: StageId, worker: WorkerId) -> bool {
        self.of(stage).contains(&worker)
    }

    /// The stages of a worker, ascending.
    pub fn stages_of(&self, worker: WorkerId) -> impl Iterator<Item = StageId> + Clone + '_ {
        (0..self.0.len()).filter(move |s| self.0[*s].contains(&worker)).map(|s| StageId(s as u16))
    }

    /// Every stage with its workers.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (StageId, &[WorkerId])> + Clone {
        self.0
            .iter()
            .enumerate()
            .map(|(stage, workers)| (StageId(stage as u16), workers.as_slice()))
    }

    /// The workers of another stage to which this worker of a stage sends tied parameters. Each
    /// receives them from one worker.
    pub fn partners(&self, from: StageId, worker: WorkerId, to: StageId) -> Vec<WorkerId> {
        let senders = self.of(from).len().max(1);
        let Some(replica) = self.replica(from, worker) else { return Vec::new() };
        let receivers = self.of(to).iter().enumerate();
        receivers
            .filter(|(number, _)| number % senders == usize::from(replica))
            .map(|(_, worker)| *worker)
            .collect()
    }

    /// Whether no stage has a worker twice or too many workers.
    pub fn are_possible(&self) -> bool {
        let distinct = |workers: &Vec<WorkerId>| {
            workers.iter().collect::<BTreeSet<_>>().len() == workers.len()
        };
        self.0.iter().all(|workers| workers.len() <= MAX_REPLICAS && distinct(workers))
    }

    /// Whether some stage has more than one worker.
    pub fn is_replicated(&self) -> bool {
        self.0.iter().any(|workers| workers.len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_twice_or_too_many_are_impossible() {
        let of = |workers: Vec<u16>| {
            StagePlacement::new(vec![workers.into_iter().map(WorkerId).collect()])
        };
        assert!(of(vec![0, 1]).are_possible());
        assert!(!of(vec![1, 1]).are_possible());
        assert!(!of((0..300).collect()).are_possible());
    }

    #[test]
    fn every_replica_but_the_first_is_given_to_by_the_one_that_passes_on_to_it() {
        for count in 1..=9 {
            let workers: Vec<WorkerId> = (0..count).map(|n| WorkerId(10 + n)).collect();
            let stage_placement = StagePlacement::new(vec![workers.clone()]);
            let stage = StageId(0);
            assert_eq!(stage_placement.giver(stage, workers[0]), None);
            for worker in &workers[1..] {
                let giver = stage_placement.giver(stage, *worker);
                let passes_on: Vec<_> = workers
                    .iter()
                    .filter(|w| stage_placement.takers(stage, **w).contains(worker))
                    .collect();
                assert_eq!(passes_on, giver.iter().collect::<Vec<_>>());
                assert!(giver < Some(*worker), "in a circle nothing would come");
            }
        }
        assert_eq!(StagePlacement::single([WorkerId(0)]).takers(StageId(0), WorkerId(7)), []);
    }
}
