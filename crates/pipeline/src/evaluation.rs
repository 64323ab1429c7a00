//! Evaluation of whole batches. Each batch is one microbatch, and replicas take batches by their
//! speed.

use crate::ids::{StageId, WorkerId};
use crate::plan::Plan;
use crate::replicas::{MicrobatchAssignment, Speed};
use crate::schedule::Action;

impl Plan {
    /// The number of batches to evaluate at once: the most replicas of any stage, so that each of
    /// these can have one.
    pub fn batches_at_once(&self) -> usize {
        self.stage_placement.iter().map(|(_, workers)| workers.len()).max().unwrap_or(1).max(1)
    }

    /// Assigns batches to replicas, so that the slowest replica finishes as early as possible.
    pub fn assign_batches(
        &self,
        batches: u32,
        speed: impl Fn(StageId, WorkerId) -> Speed,
    ) -> MicrobatchAssignment {
        MicrobatchAssignment::by_speed_alone(&self.stage_placement, batches, speed)
    }

    /// The forward passes of each worker, in a round that has no other actions.
    pub fn forwards(
        &self,
        microbatch_assignment: &MicrobatchAssignment,
        microbatches: u32,
    ) -> Vec<Vec<Action>> {
        let of_worker = |worker: WorkerId| {
            let stages = self.stage_placement.stages_of(worker);
            let taken = stages.flat_map(|stage| {
                let taken =
                    microbatch_assignment.taken(&self.stage_placement, stage, worker, microbatches);
                taken.map(move |microbatch| Action::Forward { stage, microbatch })
            });
            taken.collect()
        };
        (0..self.workers() as u16).map(WorkerId).map(of_worker).collect()
    }
}
