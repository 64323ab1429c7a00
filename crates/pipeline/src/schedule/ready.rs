//! Ready: no fixed order. Each worker runs whatever is ready: gradients of inputs first, then
//! forward passes while fewer than the cap are in flight on that stage, then gradients of
//! parameters. A late tensor delays only the actions that need it.
//!
//! ```text
//! worker 0  F0 F1 .  I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 S
//! worker 1  .  F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3 S
//! ```

use super::work::Work;
use super::{Costs, Layout, Order};
use crate::ids::{StageId, WorkerId};

/// The order in which workers take actions. `room` is the number of microbatches that fit each
/// stage's memory.
pub(super) fn order(work: &Work<'_>, costs: &Costs, room: Option<&[u32]>) -> Order {
    let Work { layout, microbatches, .. } = *work;
    let room =
        |stage: usize| room.and_then(|room| room.get(stage)).copied().unwrap_or(u32::MAX).max(1);
    let caps: Vec<u32> =
        (0..layout.stages()).map(|stage| cap(layout, costs, stage).min(microbatches)).collect();
    // Halves that wait hold memory, too. No stage holds more than the stage with the most
    // microbatches in flight.
    let most = caps.iter().copied().max().unwrap_or(1);
    let in_flight = caps.iter().enumerate().map(|(stage, cap)| (*cap).min(room(stage))).collect();
    Order::Ready {
        in_flight,
        held: (0..layout.stages()).map(|stage| most.min(room(stage))).collect(),
    }
}

/// The number of microbatches in flight that lets a stage work until the first one's gradient
/// returns: the times of later stages and of the hops there and back, divided by the time of the
/// slowest worker, and one more. Without any delay this is the number of 1F1B.
fn cap(layout: &Layout, costs: &Costs, stage: usize) -> u32 {
    let time = |s: usize| {
        let of = costs.stages.get(s).copied().unwrap_or_default();
        of.forward + of.backward_input + of.backward_weight + 3 * costs.per_action
    };
    // Replicas share the microbatches, so each replica gets its next one later.
    let replicas = |s: usize| layout.stage_placement.of(StageId(s as u16)).len().max(1) as u64;
    let of_worker = |w: u16| {
        let stages: Vec<usize> = layout.stages_of(WorkerId(w)).map(|s| s.0 as usize).collect();
        let others = stages.first().map_or(1, |s| replicas(*s));
        stages.into_iter().map(time).sum::<u64>().saturating_mul(replicas(stage)) / others
    };
    let slowest = (0..layout.workers() as u16).map(of_worker).max().unwrap_or(1).max(1);
    let later: u64 = (stage + 1..layout.stages()).map(time).sum();
    let hop = |from: usize, to: usize| {
        let bytes =
            costs.bytes.get(&(StageId(from as u16), StageId(to as u16))).copied().unwrap_or(0);
        let first =
            |s: usize| layout.stage_placement.first(StageId(s as u16)).unwrap_or(WorkerId(0));
        let (link, back) = (costs.link(first(from), first(to)), costs.link(first(to), first(from)));
        link.latency + back.latency + link.occupied(bytes) + back.occupied(bytes)
    };
    let hops: u64 = (stage + 1..layout.stages()).map(|to| hop(to - 1, to)).sum();
    u32::try_from((later + hops).div_ceil(slowest) + 1).unwrap_or(u32::MAX)
}
