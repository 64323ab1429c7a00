//! In which order microbatches are taken.

use super::{Deal, Homes};
use std::collections::BTreeMap;

/// The order in which a round's microbatches are taken up: first of each replica the first, then of each the second, and
/// so on, so that no replica waits until another one has had all of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Turns {
    turns: Vec<u32>,
    microbatches: Vec<u32>,
}

impl Turns {
    /// By the stage with the most replicas.
    pub fn new(deal: &Deal, homes: &Homes, microbatches: u32) -> Self {
        let widest = homes.iter().rev().max_by_key(|(_, workers)| workers.len());
        let Some((stage, _)) = widest.filter(|(_, workers)| workers.len() > 1) else { return Turns::default() };
        let mut taken: BTreeMap<u16, u32> = BTreeMap::new();
        let rank = |microbatch: u32| {
            let rank = taken.entry(deal.replica(stage, microbatch)).or_insert(0);
            *rank += 1;
            (*rank, microbatch)
        };
        let mut order: Vec<(u32, u32)> = (0..microbatches).map(rank).collect();
        order.sort_unstable();
        let mut turns = vec![0; order.len()];
        for (turn, (_, microbatch)) in order.iter().enumerate() {
            turns[*microbatch as usize] = turn as u32;
        }
        Turns { turns, microbatches: order.into_iter().map(|(_, microbatch)| microbatch).collect() }
    }

    /// When a microbatch is taken up, counted from 0.
    pub fn of(&self, microbatch: u32) -> u32 {
        self.turns.get(microbatch as usize).copied().unwrap_or(microbatch)
    }

    /// The microbatch that is taken up then.
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
        let homes = Homes::new(vec![vec![WorkerId(0)], vec![WorkerId(1), WorkerId(2)]]);
        let turns = Turns::new(&Deal::even(&homes, 8), &homes, 8);
        assert_eq!((0..8).map(|turn| turns.at(turn)).collect::<Vec<_>>(), [0, 4, 1, 5, 2, 6, 3, 7]);
        assert!((0..8).all(|m| turns.at(turns.of(m)) == m));
        let alone = Homes::single([WorkerId(0)]);
        assert_eq!(Turns::new(&Deal::even(&alone, 3), &alone, 3).of(2), 2);
    }
}
