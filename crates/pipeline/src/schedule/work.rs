//! The work of a round: the passes of every microbatch through every stage, assigned to workers.

use super::{Action, Layout};
use crate::ids::{StageId, WorkerId};
use crate::replicas::{MicrobatchAssignment, MicrobatchOrder};

/// The work from which schedules are built.
#[derive(Copy, Clone)]
pub(super) struct Work<'a> {
    pub(super) layout: &'a Layout,
    pub(super) microbatch_assignment: &'a MicrobatchAssignment,
    pub(super) microbatches: u32,
}

impl<'a> Work<'a> {
    /// The worker of a stage that takes a microbatch.
    pub(super) fn worker(&self, stage: StageId, microbatch: u32) -> Option<WorkerId> {
        self.microbatch_assignment.worker(&self.layout.stage_placement, stage, microbatch)
    }

    /// The microbatches that a worker takes through a stage.
    pub(super) fn taken(&self, stage: StageId, worker: WorkerId) -> impl Iterator<Item = u32> + 'a {
        self.microbatch_assignment.taken(
            &self.layout.stage_placement,
            stage,
            worker,
            self.microbatches,
        )
    }

    /// The number of microbatches that a replica of a stage has in flight in 1F1B: one for each
    /// stage from it on, or more for a stage that has more replicas than this one.
    pub(super) fn ahead(&self, stage: usize) -> u32 {
        let replicas = |s: usize| self.layout.stage_placement.of(StageId(s as u16)).len().max(1);
        let later = (stage..self.layout.stages()).map(|s| replicas(s).div_ceil(replicas(stage)));
        later.sum::<usize>() as u32
    }

    /// The order in which microbatches start.
    pub(super) fn microbatch_order(&self) -> MicrobatchOrder {
        MicrobatchOrder::new(
            self.microbatch_assignment,
            &self.layout.stage_placement,
            self.microbatches,
        )
    }

    /// All passes of every worker: forward through its stages, and back.
    pub(super) fn passes(&self, split: bool) -> Vec<Vec<Action>> {
        let of_worker = |worker: u16| {
            let worker = WorkerId(worker);
            let stages: Vec<StageId> = self.layout.stages_of(worker).collect();
            let all = |stage: &StageId| {
                let stage = *stage;
                self.taken(stage, worker).map(move |microbatch| (stage, microbatch))
            };
            let forward = stages
                .iter()
                .flat_map(all)
                .map(|(stage, microbatch)| Action::Forward { stage, microbatch });
            let back = stages
                .iter()
                .rev()
                .flat_map(all)
                .flat_map(|(stage, m)| self.layout.backward(stage, m, split));
            forward.chain(back).collect()
        };
        (0..self.layout.workers() as u16).map(of_worker).collect()
    }
}
