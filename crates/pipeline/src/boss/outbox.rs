//! The effects that the boss's session has not handed out yet.

use super::answer::Answer;
use crate::effect::BossEffect;
use crate::failure::Failure;
use crate::slot_ledger::SlotLedger;
use std::collections::VecDeque;

/// Effects in order. Every tensor leaves the session here, so the balance is here, too.
#[derive(Default)]
pub(super) struct Outbox {
    effects: VecDeque<BossEffect>,
    ledger: SlotLedger,
}

impl Outbox {
    /// Adds an effect.
    pub(super) fn push(&mut self, effect: BossEffect) {
        self.ledger.give_back(slots_in(&effect));
        self.effects.push_back(effect);
    }

    /// Adds effects.
    pub(super) fn extend(&mut self, effects: Vec<BossEffect>) {
        effects.into_iter().for_each(|effect| self.push(effect));
    }

    /// Removes the first effect.
    pub(super) fn pop(&mut self) -> Option<BossEffect> {
        self.effects.pop_front()
    }

    /// The session takes this number of tensors.
    pub(super) fn take(&mut self, slots: usize) {
        self.ledger.take(slots);
    }

    /// Fails unless the session holds what it took and did not give back.
    pub(super) fn settle(&mut self, held: usize) -> Result<(), Failure> {
        self.ledger.settle(held)
    }
}

/// The number of slots that an effect gives back.
fn slots_in(effect: &BossEffect) -> usize {
    match effect {
        BossEffect::Send { slots, .. } | BossEffect::Drop(slots) => slots.len(),
        BossEffect::State { .. } => 1,
        BossEffect::Reply { result: Ok(Answer::Run(results)), .. } => results.outputs.len(),
        BossEffect::Reply { .. }
        | BossEffect::Tell(_)
        | BossEffect::Hangup { .. }
        | BossEffect::Dismiss { .. }
        | BossEffect::StateHeads { .. }
        | BossEffect::Leaving(_)
        | BossEffect::Notice(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::RoundResults;
    use super::*;
    use crate::ids::{Slot, WorkerId};
    use layerspec::ValueId;

    #[test]
    fn every_effect_with_tensors_gives_them_back() {
        let (request, mut outbox) = (1, Outbox::default());
        outbox.take(4);
        let (worker, name, slot) = (WorkerId(0), "a".to_string(), Slot(1));
        outbox.push(BossEffect::State { request, worker, name, slot });
        let send = BossEffect::Send { to: Vec::new(), slots: vec![Slot(2)] };
        outbox.extend(vec![send, BossEffect::Drop(vec![Slot(3)])]);
        let outputs = vec![(0, ValueId(1), Slot(4))];
        let results = RoundResults { outputs, ..RoundResults::default() };
        let result = Ok(Answer::Run(Box::new(results)));
        outbox.push(BossEffect::Reply { request, result });
        assert_eq!(outbox.settle(0), Ok(()));
        assert!(outbox.settle(1).is_err());
    }
}
