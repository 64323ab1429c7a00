//! 1F1B: a stage first runs one forward pass for itself and each stage after it. Then one backward
//! pass follows each forward pass. So it never holds more microbatches than that.
//!
//! ```text
//! worker 0  F0 F1 .  .  B0 << F2 B1 << F3 B2 << .  B3 << S
//! worker 1  .  F0 B0 << F1 B1 << F2 B2 << F3 B3 << S  .  .
//! ```

use super::list::{lists, Limits};
use super::work::Work;
use super::{Action, Costs};
use crate::ids::StageId;

/// The passes of all workers. Each has one stage, in the order of the model.
pub(super) fn actions(work: &Work<'_>) -> Vec<Vec<Action>> {
    let stages = work.layout.stages();
    (0..stages as u16).map(|stage| of_stage(StageId(stage), stages, work.microbatches)).collect()
}

fn of_stage(stage: StageId, stages: usize, microbatches: u32) -> Vec<Action> {
    let ahead = (stages as u32 - u32::from(stage.0)).min(microbatches);
    let forward = |microbatch| Action::Forward { stage, microbatch };
    let mut list: Vec<Action> = (0..ahead).map(forward).collect();
    for microbatch in 0..microbatches {
        list.push(Action::Backward { stage, microbatch });
        if ahead + microbatch < microbatches {
            list.push(forward(ahead + microbatch));
        }
    }
    list
}

/// The passes of greedy workers, for stages with different numbers of replicas. [`Work::ahead`]
/// limits the microbatches of a stage that are in flight.
pub(super) fn of_unequal(work: &Work<'_>, costs: &Costs) -> Vec<Vec<Action>> {
    let stages = work.layout.stages();
    let in_flight = (0..stages).map(|stage| work.ahead(stage)).collect();
    lists(
        work,
        costs,
        false,
        &Limits { in_flight, held: vec![work.microbatches; stages], worker: None },
    )
    .0
}
