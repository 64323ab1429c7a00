//! The effects that a worker's session has not handed out yet.

use crate::effect::{Destination, Peer, StageEffect, Summing};
use crate::failure::Failure;
use crate::ids::{Slot, Ticket};
use crate::message::{TensorHead, ToBoss};
use crate::replicas::Node;
use crate::samples::DataTask;
use crate::slot_ledger::SlotLedger;
use crate::task::{EarlyOutput, Outcome, Task};
use std::collections::VecDeque;
use std::convert::Infallible;

/// Effects in order, and the tickets of the work among them. Every tensor leaves the session here,
/// so the balance is here, too.
#[derive(Default)]
pub(super) struct Outbox {
    effects: VecDeque<StageEffect>,
    next_ticket: u64,
    ledger: SlotLedger,
}

impl Outbox {
    /// Adds an effect.
    pub(super) fn push(&mut self, effect: StageEffect) {
        self.ledger.give_back(slots_in(&effect));
        self.effects.push_back(effect);
    }

    /// The session takes this number of tensors.
    pub(super) fn take(&mut self, slots: usize) {
        self.ledger.take(slots);
    }

    /// The session takes the tensors of a result.
    pub(super) fn take_outcome(&mut self, outcome: Outcome<Slot>) -> Outcome<Slot> {
        outcome.map(|slot| {
            self.ledger.take(1);
            slot
        })
    }

    /// The session takes the tensors of a result that comes during a task.
    pub(super) fn take_early(&mut self, output: EarlyOutput<Slot>) -> EarlyOutput<Slot> {
        output.map(|slot| {
            self.ledger.take(1);
            slot
        })
    }

    /// Fails unless the session holds what it took and did not give back.
    pub(super) fn settle(&mut self, held: usize) -> Result<(), Failure> {
        self.ledger.settle(held)
    }

    /// Removes the first effect.
    pub(super) fn pop(&mut self) -> Option<StageEffect> {
        self.effects.pop_front()
    }

    /// Sends the same tensors to each receiver.
    pub(super) fn send(&mut self, to: Vec<Destination>, slots: Vec<Slot>) {
        self.push(StageEffect::Send { to, slots });
    }

    /// Sends a message to the boss.
    pub(super) fn tell_boss(&mut self, message: ToBoss) {
        self.push(StageEffect::Tell(message));
    }

    /// Sends a head and its tensors to the boss.
    pub(super) fn send_boss(&mut self, head: TensorHead, slots: Vec<Slot>) {
        self.send(vec![Destination { peer: Peer::Boss, route: None, head }], slots);
    }

    /// Frees tensors.
    pub(super) fn drop_slots(&mut self, slots: Vec<Slot>) {
        if !slots.is_empty() {
            self.push(StageEffect::Drop(slots));
        }
    }

    /// Frees tensors and disconnects their sender, which violated the protocol.
    pub(super) fn refuse(&mut self, from: Peer, slots: Vec<Slot>, reason: impl Into<String>) {
        self.drop_slots(slots);
        self.push(StageEffect::Hangup { peer: from, reason: reason.into() });
    }

    /// Disconnects the boss, which violated the protocol.
    pub(super) fn refuse_boss(&mut self, reason: impl Into<String>) {
        self.refuse(Peer::Boss, Vec::new(), reason);
    }

    /// Gives a task to the compute thread.
    pub(super) fn compute(&mut self, task: Task<Slot>) -> Ticket {
        let ticket = self.ticket();
        let ledger = &mut self.ledger;
        let Ok(task) = task.try_map(|slot| {
            ledger.give_back(1);
            Ok::<Slot, Infallible>(slot)
        });
        // Its tensors are counted, so it is not pushed as the others are.
        self.effects.push_back(StageEffect::Compute { ticket, task });
        ticket
    }

    /// Requests a sum of gradients beside the compute thread.
    pub(super) fn sum(&mut self, summing: Summing, sums: Vec<(Node, Vec<Slot>)>) -> Ticket {
        let ticket = self.ticket();
        self.push(StageEffect::Sum { ticket, summing, sums });
        ticket
    }

    /// Requests work on the worker's own files.
    pub(super) fn data(&mut self, task: DataTask) -> Ticket {
        let ticket = self.ticket();
        self.push(StageEffect::Data { ticket, task });
        ticket
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        ticket
    }
}

/// The number of slots that an effect gives back, apart from those of a task.
fn slots_in(effect: &StageEffect) -> usize {
    match effect {
        StageEffect::Send { slots, .. } | StageEffect::Drop(slots) => slots.len(),
        StageEffect::StoreSnapshot { tensors, .. } => tensors.len(),
        StageEffect::Sum { sums, .. } => sums.iter().map(|(_, slots)| slots.len()).sum(),
        StageEffect::Tell(_)
        | StageEffect::Compute { .. }
        | StageEffect::Interrupt
        | StageEffect::Data { .. }
        | StageEffect::ReadAhead(_)
        | StageEffect::Residuals(_)
        | StageEffect::SendSnapshot { .. }
        | StageEffect::RetainSnapshots(_)
        | StageEffect::Dial { .. }
        | StageEffect::PunchHole { .. }
        | StageEffect::Hangup { .. }
        | StageEffect::Progress(_)
        | StageEffect::Finish
        | StageEffect::Leave => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StageId;
    use crate::peer_snapshot::{SnapshotId, SnapshotNote};
    use crate::task::LoadContent;

    #[test]
    fn every_effect_with_tensors_gives_them_back() {
        let mut outbox = Outbox::default();
        let tensors = |slot| vec![("a".to_string(), Slot(slot))];
        outbox.take(6);
        outbox.drop_slots(vec![Slot(1)]);
        outbox.send_boss(TensorHead::File { id: 1, name: String::new() }, vec![Slot(2)]);
        let sums = (0..2).map(|leaf| (Node::leaf(leaf), vec![Slot(3 + u64::from(leaf))]));
        outbox.sum(Summing::InTurn, sums.collect());
        let content = LoadContent::WholeState;
        outbox.compute(Task::Load { tensors: tensors(5), content });
        let snapshot = SnapshotId { run: 1, step: 1, membership: 1 };
        let note = SnapshotNote { parts: 1, text: String::new() };
        let tensors = tensors(6);
        outbox.push(StageEffect::StoreSnapshot { snapshot, note, part: 0, tensors });
        assert_eq!(outbox.settle(0), Ok(()));
    }

    #[test]
    fn every_tensor_of_a_result_is_taken() {
        let mut outbox = Outbox::default();
        let outputs = vec![Slot(1), Slot(2)];
        outbox.take_outcome(Outcome::Forward { outputs, loss: None });
        let slices = vec![Slot(3)];
        outbox.take_early(EarlyOutput::Updated { stage: StageId(0), bucket: 0, slices });
        assert_eq!(outbox.settle(3), Ok(()));
        assert!(outbox.settle(2).is_err());
    }
}
