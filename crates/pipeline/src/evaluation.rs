//! Evaluation of whole batches. Each batch is one microbatch. Stages work on several at a time, and
//! replicas take batches by their speed.

use crate::ids::{StageId, WorkerId};
use crate::plan::Plan;
use crate::replicas::{MicrobatchAssignment, Speed};
use crate::schedule::Action;

/// The batches to evaluate at once for each stage. At the beginning and the end of them some stages
/// wait.
const BATCHES_OF_STAGE: usize = 4;

impl Plan {
    /// The number of batches to evaluate at once, so that all stages, and all replicas of a stage,
    /// have work.
    pub fn batches_at_once(&self) -> usize {
        let replicas = self.stage_placement.iter().map(|(_, workers)| workers.len()).max();
        let of_replica = match self.stages.len() {
            0 | 1 => 1,
            stages => stages * BATCHES_OF_STAGE,
        };
        replicas.unwrap_or(1).max(1) * of_replica
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
