//! 1F1B: a stage runs ahead by as many forwards as there are stages after it, then one backward
//! follows each forward, so it never holds more microbatches than that.
//!
//! ```text
//! worker 0  F0 F1 .  .  B0 << F2 B1 << F3 B2 << .  B3 << S
//! worker 1  .  F0 B0 << F1 B1 << F2 B2 << F3 B3 << S  .  .
//! ```

use super::Action;
use crate::ids::StageId;

/// The passes of one of so many stages.
pub(super) fn actions(stage: StageId, stages: usize, microbatches: u32) -> Vec<Action> {
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
