//! ZB-H1: 1F1B whose backward passes are split. Others wait for the half for inputs (`I`), nobody for the half for
//! parameters (`W`), so that one fills what were waits.
//!
//! ```text
//! worker 0  F0 F1 .  I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 S
//! worker 1  .  F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3 S
//! ```
//!
//! The lists are those of workers that are greedy within 1F1B's limits: each stage as far ahead as there, and no worker
//! holds more microbatches than the first one does there. With equal halves a third of 1F1B's wait is left.

use super::list::{lists, Limits};
use super::{Action, Costs, Layout};

/// The passes of all workers.
pub(super) fn actions(layout: &Layout, microbatches: u32, costs: &Costs) -> Vec<Vec<Action>> {
    let stages = layout.stages() as u32;
    let in_flight = (0..stages).map(|stage| stages - stage).collect();
    let limits = Limits { in_flight, held: vec![stages; stages as usize], worker: None };
    lists(layout, microbatches, costs, true, &limits).0
}
