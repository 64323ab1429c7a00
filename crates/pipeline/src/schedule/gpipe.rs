//! GPipe: every microbatch forward, then every microbatch backward. With several stages on a
//! worker, it takes one stage after the other.
//!
//! If stages have different numbers of replicas, all take microbatches in the order in which they
//! start: the first one of each replica, then the second one of each, and so on. If by the measured
//! times the order of their numbers is shorter, they take that. It is shorter if the stage with the
//! most replicas has little to do.
//!
//! ```text
//! worker 0  F0 F1 F2 F3 .  .  .  B0 << B1 << B2 << B3 << S
//! worker 1  .  F0 F1 F2 F3 B0 << B1 << B2 << B3 << S  .  .
//! ```

use super::list::{shorter, timed};
use super::work::Work;
use super::{Action, Costs};
use std::mem::discriminant;

/// The passes of all workers.
pub(super) fn actions(work: &Work<'_>) -> Vec<Vec<Action>> {
    work.passes(false)
}

/// The passes of all workers, for stages with different numbers of replicas. Costs that are not
/// known do not show which order is shorter. Then it is that of the turns, which loses less where
/// it is the wrong one.
pub(super) fn of_unequal(work: &Work<'_>, measured: Option<&Costs>) -> Vec<Vec<Action>> {
    let by_number = work.passes(false);
    let mut in_turn = by_number.clone();
    let order = work.microbatch_order();
    for list in &mut in_turn {
        let same_pass =
            |a: &Action, b: &Action| a.stage() == b.stage() && discriminant(a) == discriminant(b);
        for passes in list.chunk_by_mut(same_pass) {
            passes.sort_by_key(|action| action.microbatch().map(|m| order.of(m)));
        }
    }
    match measured {
        Some(costs) => shorter(timed(work, costs, in_turn), timed(work, costs, by_number)).0,
        None => in_turn,
    }
}
