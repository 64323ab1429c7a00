//! Interleaved 1F1B: 1F1B with several stages on each worker. With `p` workers, each takes `p`
//! microbatches through its first stage, then through its second, and so on. `F0/2` is microbatch 0
//! through stage 2.
//!
//! ```text
//! worker 0  F0/0 F1/0 F0/2 F1/2 F2/0 .    B0/2 <<   F3/0 B1/2 <<   F2/2 B0/0 <<   F3/2 B1/0 <<   .    B2/2 <<   .    B3/2 <<   B2/0 <<   B3/0 <<   S/0  S/2
//! worker 1  .    F0/1 F1/1 F0/3 B0/3 <<   F1/3 B1/3 <<   F2/1 B0/1 <<   F3/1 B1/1 <<   F2/3 B2/3 <<   F3/3 B3/3 <<   B2/1 <<   B3/1 <<   S/1  S/3  .    .
//! ```
//!
//! The waits at both ends are those of 1F1B divided by the number of stages on a worker. This is
//! Megatron-LM's construction. If the number of workers does not divide that of the microbatches,
//! the lists are those of full groups without the missing microbatches. If in one larger group no
//! worker has more in flight than the first one may, or the lists of greedy workers are shorter,
//! these are taken.

use super::list::{shorter, shortest, timed};
use super::work::Work;
use super::{Action, Costs, Layout};
use crate::ids::{StageId, WorkerId};

/// The passes of all workers.
pub(super) fn actions(work: &Work<'_>, costs: &Costs) -> Vec<Vec<Action>> {
    let Work { layout, microbatches, .. } = *work;
    let workers = layout.workers().max(1) as u32;
    let full = in_groups(layout, workers, microbatches);
    if microbatches.is_multiple_of(workers) {
        return full;
    }
    let full = timed(work, costs, full);
    let passes = u64::from(microbatches) * layout.stages_of(WorkerId(0)).count() as u64;
    let best = if microbatches > workers && passes <= most(layout, WorkerId(0)).into() {
        shorter(full, timed(work, costs, in_groups(layout, microbatches, microbatches)))
    } else {
        full
    };
    shorter(best, shortest(work, costs, false, most(layout, WorkerId(0)))).0
}

/// The passes of greedy workers, for stages with different numbers of replicas.
pub(super) fn of_unequal(work: &Work<'_>, costs: &Costs) -> Vec<Vec<Action>> {
    shortest(work, costs, false, 2 * work.layout.stages() as u32).0
}

/// The number of forward passes of a worker before its first backward pass. The worker never holds
/// more microbatches than this.
fn most(layout: &Layout, worker: WorkerId) -> u32 {
    let (workers, chunks) = (layout.workers() as u32, layout.stages_of(worker).count() as u32);
    2 * (workers - 1 - u32::from(worker.0)) + (chunks - 1) * workers + 1
}

/// The passes of all workers, in groups of `group` microbatches. Microbatches that the last group
/// lacks are left out of its lists, so the order of the others does not change.
fn in_groups(layout: &Layout, group: u32, microbatches: u32) -> Vec<Vec<Action>> {
    (0..layout.workers() as u16)
        .map(|worker| {
            let mut list = in_full_groups(layout, WorkerId(worker), group, microbatches);
            list.retain(|action| action.microbatch().is_some_and(|m| m < microbatches));
            list
        })
        .collect()
}

/// The passes of a worker. The last group is filled up with microbatches that the batch lacks.
fn in_full_groups(layout: &Layout, worker: WorkerId, group: u32, microbatches: u32) -> Vec<Action> {
    let stages: Vec<StageId> = layout.stages_of(worker).collect();
    let passes = |stages: Vec<StageId>| {
        (0..microbatches).step_by(group.max(1) as usize).flat_map(move |first| {
            let group = first..first.saturating_add(group);
            stages.clone().into_iter().flat_map(move |stage| group.clone().map(move |m| (stage, m)))
        })
    };
    let forward: Vec<_> = passes(stages.clone()).collect();
    let backward = passes(stages.iter().rev().copied().collect());
    let larger =
        group.saturating_sub(layout.workers() as u32) as usize * stages.len().saturating_sub(1);
    let ahead = (most(layout, worker) as usize + larger).min(forward.len());
    let make = |(stage, microbatch): &(StageId, u32)| Action::Forward {
        stage: *stage,
        microbatch: *microbatch,
    };
    let mut list: Vec<Action> = forward[..ahead].iter().map(make).collect();
    for (index, (stage, microbatch)) in backward.enumerate() {
        list.push(Action::Backward { stage, microbatch });
        list.extend(forward.get(ahead + index).map(make));
    }
    list
}
