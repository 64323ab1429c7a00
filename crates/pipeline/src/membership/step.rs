//! A completed step, and the part of each member in it.

use super::WorkerId;
use crate::replicas::{MicrobatchAssignment, StagePlacement};
use std::collections::BTreeMap;

/// The position of a run.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// The completed steps.
    pub step: u64,
    /// The completed updates of parameters.
    pub updates: u64,
}

/// A completed step.
pub struct StepDone<'a> {
    /// Its number, from 1.
    pub step: u64,
    /// The samples of its batch.
    pub samples: u64,
    /// The microbatches of its batch.
    pub microbatches: u32,
    /// The replica that took each microbatch.
    pub assignment: &'a MicrobatchAssignment,
    /// The number of commands that each follower has still to run.
    pub behind: BTreeMap<WorkerId, usize>,
}

impl StepDone<'_> {
    /// The microbatches of a worker.
    pub(super) fn taken(&self, placement: &StagePlacement, worker: WorkerId) -> Vec<u32> {
        let stage = placement.stages_of(worker).next();
        let taken = stage.map(|stage| {
            self.assignment.taken(placement, stage, worker, self.microbatches).collect()
        });
        taken.unwrap_or_default()
    }

    /// The samples of a microbatch. The first ones have one more if the batch is uneven.
    pub(super) fn samples(&self, microbatch: &u32) -> u64 {
        let count = u64::from(self.microbatches.max(1));
        self.samples / count + u64::from(u64::from(*microbatch) < self.samples % count)
    }
}
