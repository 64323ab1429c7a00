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
//! the last group is smaller, or the lists of greedy workers are used if those are shorter.

use super::list::shortest;
use super::player::play;
use super::work::Work;
use super::{Action, Costs, Layout, Order, Picker};
use crate::ids::{StageId, WorkerId};

/// The passes of all workers.
pub(super) fn actions(work: &Work<'_>, costs: &Costs) -> Vec<Vec<Action>> {
    let Work { layout, microbatches, .. } = *work;
    let workers = (0..layout.workers() as u16).map(|w| worker(layout, WorkerId(w), microbatches));
    let built: Vec<_> = workers.collect();
    if microbatches.is_multiple_of(layout.workers().max(1) as u32) {
        return built;
    }
    let pickers = built
        .iter()
        .map(|list| Picker::new(list, &Order::Listed, &work.microbatch_order(), |_| true))
        .collect();
    let built_end = play(work, pickers, costs).map_or(u64::MAX, |timeline| timeline.end());
    let (greedy, greedy_end) = shortest(work, costs, false, most(layout, WorkerId(0)));
    if greedy_end < built_end {
        greedy
    } else {
        built
    }
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

fn worker(layout: &Layout, worker: WorkerId, microbatches: u32) -> Vec<Action> {
    let workers = layout.workers() as u32;
    let stages: Vec<StageId> = layout.stages_of(worker).collect();
    let groups = |stages: Vec<StageId>| {
        (0..microbatches).step_by(workers.max(1) as usize).flat_map(move |first| {
            let group = first..microbatches.min(first + workers);
            stages.clone().into_iter().flat_map(move |stage| group.clone().map(move |m| (stage, m)))
        })
    };
    let forward: Vec<_> = groups(stages.clone()).collect();
    let backward = groups(stages.iter().rev().copied().collect());
    let ahead = (most(layout, worker) as usize).min(forward.len());
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
