//! GPipe: every microbatch forward, then every microbatch backward.
//!
//! ```text
//! worker 0  F0 F1 F2 F3 .  .  .  B0 << B1 << B2 << B3 << S
//! worker 1  .  F0 F1 F2 F3 B0 << B1 << B2 << B3 << S  .  .
//! ```

use super::Action;
use crate::ids::StageId;

pub(super) fn actions(stage: StageId, microbatches: u32, list: &mut Vec<Action>) {
    list.extend((0..microbatches).map(|microbatch| Action::Forward { stage, microbatch }));
    list.extend((0..microbatches).map(|microbatch| Action::Backward { stage, microbatch }));
}
