//! ZB-H1: 1F1B whose backward passes are split. Other stages wait for the half for inputs (`I`). No
//! stage waits for the half for parameters (`W`), so it fills the waits.
//!
//! ```text
//! worker 0  F0 F1 .  I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 S
//! worker 1  .  F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3 S
//! ```
//!
//! The forward passes and the halves for inputs have 1F1B's order. Stage `s`, counted from 0, owes
//! up to `s` halves for parameters, and takes them at the end. So no worker holds more microbatches
//! than the first worker of 1F1B. Of `p` stages with at least `p` microbatches each waits for
//! `(p - 1)(F + I - W)`, if `W` is the shortest of the three. With equal halves that is a third of
//! 1F1B's wait. This is the paper's construction by hand. If stages or links differ, the lists of
//! workers that are greedy within the same limits may be shorter; then these are taken.

use super::list::{lists, shorter, timed, Limits, Timed};
use super::work::Work;
use super::{Action, Costs};
use crate::ids::StageId;

/// The passes of all workers. Each has one stage, in the order of the model.
pub(super) fn actions(work: &Work<'_>, costs: &Costs) -> Vec<Vec<Action>> {
    let stages = 0..work.layout.stages() as u16;
    let by_hand = stages.map(|stage| of_stage(work, StageId(stage))).collect();
    shorter(timed(work, costs, by_hand), greedy(work, costs)).0
}

fn of_stage(work: &Work<'_>, stage: StageId) -> Vec<Action> {
    let Work { layout, microbatches, .. } = *work;
    let owed = u32::from(stage.0);
    let ahead = (layout.stages() as u32 - owed).min(microbatches);
    let forward = |microbatch| Action::Forward { stage, microbatch };
    let halves = |microbatch| layout.backward(stage, microbatch, true);
    let mut list: Vec<Action> = (0..ahead).map(forward).collect();
    for microbatch in 0..microbatches {
        list.extend(halves(microbatch).take(1));
        list.extend(microbatch.checked_sub(owed).and_then(|m| halves(m).nth(1)));
        list.extend(Some(ahead + microbatch).filter(|m| *m < microbatches).map(forward));
    }
    list.extend((microbatches.saturating_sub(owed)..microbatches).filter_map(|m| halves(m).nth(1)));
    list
}

/// The passes of greedy workers, for stages with different numbers of replicas.
pub(super) fn of_unequal(work: &Work<'_>, costs: &Costs) -> Vec<Vec<Action>> {
    greedy(work, costs).0
}

/// The passes of greedy workers. Each stage has as many microbatches in flight as in 1F1B.
fn greedy(work: &Work<'_>, costs: &Costs) -> Timed {
    let stages = work.layout.stages();
    let in_flight: Vec<u32> = (0..stages).map(|stage| work.ahead(stage)).collect();
    let most = in_flight.iter().copied().max().unwrap_or(1);
    lists(work, costs, true, &Limits { in_flight, held: vec![most; stages], worker: None })
}
