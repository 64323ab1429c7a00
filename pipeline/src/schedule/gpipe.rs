//! GPipe: every microbatch forward, then every microbatch backward. With several stages on a worker, one stage after
//! the other.
//!
//! ```text
//! worker 0  F0 F1 F2 F3 .  .  .  B0 << B1 << B2 << B3 << S
//! worker 1  .  F0 F1 F2 F3 B0 << B1 << B2 << B3 << S  .  .
//! ```

use super::Action;
use crate::ids::StageId;

/// The passes of a worker with these stages, ascending.
pub(super) fn actions(stages: impl Iterator<Item = StageId>, microbatches: u32) -> Vec<Action> {
    let stages: Vec<StageId> = stages.collect();
    let all = |stage: &StageId| {
        let stage = *stage;
        (0..microbatches).map(move |microbatch| (stage, microbatch))
    };
    let forward = stages.iter().flat_map(all).map(|(stage, microbatch)| Action::Forward { stage, microbatch });
    let backward = stages.iter().rev().flat_map(all).map(|(stage, microbatch)| Action::Backward { stage, microbatch });
    forward.chain(backward).collect()
}
