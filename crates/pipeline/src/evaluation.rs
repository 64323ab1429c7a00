//! Evaluation of whole batches. Each batch is one microbatch, and replicas take batches by their
//! speed.

use crate::ids::{StageId, WorkerId};
use crate::plan::Plan;
use crate::replicas::{keeps_statistics, MicrobatchAssignment, Speed};
use crate::schedule::Action;

impl Plan {
    /// The number of batches to evaluate at once: the most replicas of any stage, so that each of
    /// these can have one.
    pub fn batches_at_once(&self) -> usize {
        let replicas = self.stages.iter().filter(|spec| self.are_alike(spec.stage));
        replicas.map(|spec| self.stage_placement.of(spec.stage).len()).max().unwrap_or(1).max(1)
    }

    /// Assigns batches to replicas, so that the slowest replica finishes as early as possible.
    pub fn assign_batches(
        &self,
        batches: u32,
        speed: impl Fn(StageId, WorkerId) -> Speed,
    ) -> MicrobatchAssignment {
        MicrobatchAssignment::by_speed_alone(&self.stage_placement, batches, speed)
            .with_first_of(|stage| !self.are_alike(stage))
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

    /// Whether all replicas of a stage have the same outputs as the first. They may differ if the
    /// stage has running statistics but no trained parameters: each replica then keeps its own
    /// statistics.
    fn are_alike(&self, stage: StageId) -> bool {
        let spec = self.stages.iter().find(|spec| spec.stage == stage);
        spec.is_some_and(|spec| spec.is_trained() || !keeps_statistics(spec))
    }
}
