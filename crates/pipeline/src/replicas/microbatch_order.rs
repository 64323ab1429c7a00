//! The order in which replicas start microbatches.

use super::{MicrobatchAssignment, StagePlacement};
use std::collections::BTreeMap;

/// The order in which a round's microbatches start: the first one of each replica, then the second
/// one of each, and so on. So no replica waits until another has taken all of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MicrobatchOrder {
    microbatch_order: Vec<u32>,
    microbatches: Vec<u32>,
}

impl MicrobatchOrder {
    /// By the stage with the most replicas.
    pub fn new(
        microbatch_assignment: &MicrobatchAssignment,
        stage_placement: &StagePlacement,
        microbatches: u32,
    ) -> Self {
        let widest = stage_placement.iter().rev().max_by_key(|(_, workers)| workers.len());
        let Some((stage, _)) = widest.filter(|(_, workers)| workers.len() > 1) else {
            return MicrobatchOrder::default();
        };
        let mut taken: BTreeMap<u16, u32> = BTreeMap::new();
        let rank = |microbatch: u32| {
            let rank = taken.entry(microbatch_assignment.replica(stage, microbatch)).or_insert(0);
            *rank += 1;
            (*rank, microbatch)
        };
        let mut order: Vec<(u32, u32)> = (0..microbatches).map(rank).collect();
        order.sort_unstable();
        let mut microbatch_order = vec![0; order.len()];
        for (turn, (_, microbatch)) in order.iter().enumerate() {
            microbatch_order[*microbatch as usize] = turn as u32;
        }
        MicrobatchOrder {
            microbatch_order,
            microbatches: order.into_iter().map(|(_, microbatch)| microbatch).collect(),
        }
    }

    /// The turn of a microbatch, counted from 0.
    pub fn of(&self, microbatch: u32) -> u32 {
        self.microbatch_order.get(microbatch as usize).copied().unwrap_or(microbatch)
    }

    /// The microbatch of a turn.
    pub fn at(&self, turn: u32) -> u32 {
        self.microbatches.get(turn as usize).copied().unwrap_or(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkerId;

    #[test]
    fn replicas_take_turns() {
        let stage_placement =
            StagePlacement::new(vec![vec![WorkerId(0)], vec![WorkerId(1), WorkerId(2)]]);
        let microbatch_order = MicrobatchOrder::new(
            &MicrobatchAssignment::even(&stage_placement, 8),
            &stage_placement,
            8,
        );
        assert_eq!(
            (0..8).map(|turn| microbatch_order.at(turn)).collect::<Vec<_>>(),
            [0, 4, 1, 5, 2, 6, 3, 7]
        );
        assert!((0..8).all(|m| microbatch_order.at(microbatch_order.of(m)) == m));
        let alone = StagePlacement::single([WorkerId(0)]);
        assert_eq!(
            MicrobatchOrder::new(&MicrobatchAssignment::even(&alone, 3), &alone, 3).of(2),
            2
        );
    }
}
