//! ZB-H1: 1F1B whose backward passes are split. Other stages wait for the half for inputs (`I`). No
//! stage waits for the half for parameters (`W`), so it fills the waits.
//!
//! ```text
//! worker 0  F0 F1 .  I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 S
//! worker 1  .  F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3 S
//! ```
//!
//! The lists are those of workers that are greedy within 1F1B's limits. Each stage has the same
//! number of microbatches in flight, and no worker holds more microbatches than the first worker of
//! 1F1B. With equal halves a third of 1F1B's wait remains.

use super::list::{lists, Limits};
use super::work::Work;
use super::{Action, Costs};

/// The passes of all workers.
pub(super) fn actions(work: &Work<'_>, costs: &Costs) -> Vec<Vec<Action>> {
    let stages = work.layout.stages();
    let in_flight: Vec<u32> = (0..stages).map(|stage| work.ahead(stage)).collect();
    let most = in_flight.iter().copied().max().unwrap_or(1);
    lists(work, costs, true, &Limits { in_flight, held: vec![most; stages], worker: None }).0
}
