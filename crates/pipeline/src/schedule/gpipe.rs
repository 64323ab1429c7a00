//! GPipe: every microbatch forward, then every microbatch backward. With several stages on a
//! worker, it takes one stage after the other.
//!
//! ```text
//! worker 0  F0 F1 F2 F3 .  .  .  B0 << B1 << B2 << B3 << S
//! worker 1  .  F0 F1 F2 F3 B0 << B1 << B2 << B3 << S  .  .
//! ```

use super::work::Work;
use super::Action;

/// The passes of all workers.
pub(super) fn actions(work: &Work<'_>) -> Vec<Vec<Action>> {
    work.passes(false)
}
