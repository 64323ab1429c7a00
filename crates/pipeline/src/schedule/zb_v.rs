//! ZB-V: each worker has two stages, one on the way down and one on the way back up. So the first
//! worker also has the last stage, and a backward pass begins on the worker that ended the forward
//! pass. Backward passes are split as in ZB-H1.
//!
//! ```text
//! worker 0  F0/0 F1/0 F2/0 F0/3 I0/3 W0/3 F1/3 I1/3 W1/3 I0/0 W0/0 F3/0 I1/0 F2/3 I2/3 W1/0 W2/3 I2/0 W2/0 F3/3 I3/3 W3/3 .    I3/0 W3/0 S/0  S/3
//! worker 1  .    F0/1 F0/2 F1/1 F1/2 I0/2 I0/1 W0/2 I1/2 I1/1 F2/1 W0/1 F2/2 W1/2 F3/1 I2/2 I2/1 W1/1 F3/2 W2/2 W2/1 I3/2 I3/1 W3/2 W3/1 S/1  S/2
//! ```
//!
//! The lists are those of greedy workers that hold no more than 1F1B's first worker: two
//! microbatches for each worker, where each microbatch is of half a worker's layers.

use super::list::shortest;
use super::work::Work;
use super::{Action, Costs};

/// The passes of all workers.
pub(super) fn actions(work: &Work<'_>, costs: &Costs) -> Vec<Vec<Action>> {
    shortest(work, costs, true, work.layout.stages() as u32).0
}
