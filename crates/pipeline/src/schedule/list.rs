//! List scheduling: a fixed list for each worker, made by playing greedy workers under given costs
//! and limits.

use super::player::play;
use super::work::Work;
use super::{Action, Costs, Order, Picker};

/// The limits under which workers are greedy.
pub(super) struct Limits {
    /// For every stage, as in [`Order::Ready`].
    pub(super) in_flight: Vec<u32>,
    /// For every stage, as in [`Order::Ready`].
    pub(super) held: Vec<u32>,
    /// The most microbatches that all stages of a worker hold together.
    pub(super) worker: Option<u32>,
}

/// Lists and the time that they take.
pub(super) type Timed = (Vec<Vec<Action>>, u64);

/// The passes of each worker in the order in which greedy workers take them, and their time.
pub(super) fn lists(work: &Work<'_>, costs: &Costs, split: bool, limits: &Limits) -> Timed {
    let order = Order::Ready { in_flight: limits.in_flight.clone(), held: limits.held.clone() };
    let microbatch_order = work.microbatch_order();
    let picker = |actions: Vec<Action>| {
        let picker =
            Picker::new(&actions, &order, &microbatch_order, |stage| work.layout.is_awaited(stage));
        match limits.worker {
            Some(most) => picker.holding_at_most(most),
            None => picker,
        }
    };
    let pickers = work.passes(split).into_iter().map(picker).collect();
    match play(work, pickers, costs) {
        Ok(timeline) => {
            let actions =
                timeline.workers.iter().map(|list| list.iter().map(|i| i.action).collect());
            (actions.collect(), timeline.end())
        }
        // Within these limits greedy workers do not wait for each other. If they did, `check` would
        // refuse the schedule.
        Err(_) => (work.passes(split), u64::MAX),
    }
}

/// The lists with their time. It is endless if workers would wait for each other.
pub(super) fn timed(work: &Work<'_>, costs: &Costs, lists: Vec<Vec<Action>>) -> Timed {
    let microbatch_order = work.microbatch_order();
    let picker = |list: &Vec<Action>| {
        Picker::new(list, &Order::Listed, &microbatch_order, |stage| work.layout.is_awaited(stage))
    };
    let end = play(work, lists.iter().map(picker).collect(), costs)
        .map_or(u64::MAX, |timeline| timeline.end());
    (lists, end)
}

/// The shorter of two. Of equally short ones it is the first.
pub(super) fn shorter(first: Timed, second: Timed) -> Timed {
    if second.1 < first.1 {
        second
    } else {
        first
    }
}

/// The shortest of several such lists in which every worker holds at most `most` microbatches. The
/// best number of microbatches in flight depends on the costs, so a few are tried.
pub(super) fn shortest(work: &Work<'_>, costs: &Costs, split: bool, most: u32) -> Timed {
    let stages = work.layout.stages();
    let made = [(1, 3), (1, 2), (2, 3), (1, 1)].into_iter().map(|(over, under)| {
        let ahead = |stage: usize| ((stages - stage) as u32 * over).div_ceil(under) + 1;
        let in_flight = (0..stages).map(ahead).collect();
        let limits =
            Limits { in_flight, held: vec![work.microbatches; stages], worker: Some(most) };
        lists(work, costs, split, &limits)
    });
    made.min_by_key(|(_, end)| *end).unwrap_or_default()
}
