//! Evaluation of whole batches. Each batch is one microbatch. Stages work on several at a time, and
//! replicas take batches by their speed.

use crate::ids::{StageId, WorkerId};
use crate::plan::{Plan, StageSpec};
use crate::replicas::{MicrobatchAssignment, MicrobatchOrder, Speed};
use crate::schedule::Action;
use layerspec::ValueId;

/// The batches to evaluate at once for each stage. At the beginning and the end of them some stages
/// wait.
const BATCHES_OF_STAGE: usize = 4;

impl Plan {
    /// The most replicas of any stage. Each can have a batch.
    pub fn most_replicas(&self) -> usize {
        self.stage_placement.iter().map(|(_, workers)| workers.len()).max().unwrap_or(1).max(1)
    }

    /// The number of batches to evaluate at once, so that all stages, and all replicas of a stage,
    /// have work.
    pub fn batches_at_once(&self) -> usize {
        let of_replica = match self.stages.len() {
            0 | 1 => 1,
            stages => stages * BATCHES_OF_STAGE,
        };
        self.most_replicas() * of_replica
    }

    /// The most bytes that one worker receives from other stages for a batch, on average over the
    /// replicas of its stage. `bytes` are those of a value.
    pub fn received(&self, bytes: impl Fn(ValueId) -> u64) -> u64 {
        let of_stage = |stage: &StageSpec| {
            let inputs = stage.inputs.iter().filter(|input| input.from.is_some());
            let sum = inputs.map(|input| bytes(input.value)).fold(0, u64::saturating_add);
            sum / (self.stage_placement.of(stage.stage).len().max(1) as u64)
        };
        self.stages.iter().map(of_stage).max().unwrap_or(0)
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
        // As their inputs come.
        let order =
            MicrobatchOrder::new(microbatch_assignment, &self.stage_placement, microbatches);
        let of_worker = |worker: WorkerId| {
            let stages = self.stage_placement.stages_of(worker);
            let taken = stages.flat_map(|stage| {
                let taken =
                    microbatch_assignment.taken(&self.stage_placement, stage, worker, microbatches);
                let mut taken: Vec<u32> = taken.collect();
                taken.sort_by_key(|microbatch| order.of(*microbatch));
                taken.into_iter().map(move |microbatch| Action::Forward { stage, microbatch })
            });
            taken.collect()
        };
        (0..self.workers() as u16).map(WorkerId).map(of_worker).collect()
    }
}
