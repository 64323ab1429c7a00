//! The state that replicas send to the workers that join them.

use super::links::Links;
use super::named_tensors::{NamedTensors, MAX_STATE_TENSORS};
use super::outbox::Outbox;
use crate::effect::Peer;
use crate::ids::{Slot, WorkerId};
use crate::message::TensorHead;
use crate::task::{LoadContent, Task};
use std::collections::BTreeMap;

/// The most commands for which a state may arrive early.
const MAX_EARLY: usize = 4;

/// The transfer of the current command, and the states that arrived for it or for later commands.
#[derive(Default)]
pub(super) struct StateTransfer {
    current: Option<Transfer>,
    /// By command and sender: the right sender is known only once the command has arrived.
    arrivals: BTreeMap<u64, BTreeMap<Peer, NamedTensors>>,
}

/// The transfers of a change of membership.
pub(super) struct Transfer {
    /// The command.
    pub(super) id: u64,
    /// Followers that receive this worker's state, once it is copied and they are connected.
    pub(super) followers: Vec<WorkerId>,
    /// The worker whose state this worker loads, until it is loaded.
    pub(super) source: Option<WorkerId>,
    /// The copy of this worker's state, until it is sent.
    copied: Option<Vec<(String, Slot)>>,
    /// Whether the state of the source has arrived.
    arrived: bool,
}

impl Transfer {
    pub(super) fn new(id: u64, followers: Vec<WorkerId>, source: Option<WorkerId>) -> Self {
        Transfer { id, followers, source, copied: None, arrived: false }
    }
}

/// One tensor of a replica's state.
pub(super) struct StateTensor {
    /// The command.
    pub(super) id: u64,
    pub(super) name: String,
    /// The number of tensors of the state.
    pub(super) of: u32,
    pub(super) slots: Vec<Slot>,
}

impl StateTransfer {
    /// The command arrived and is the current one.
    pub(super) fn begin(&mut self, transfer: Transfer) {
        self.current = Some(transfer);
    }

    /// The current command is over. Frees a copy that was not sent.
    pub(super) fn end(&mut self, outbox: &mut Outbox) {
        let copied = self.current.take().and_then(|transfer| transfer.copied);
        outbox.drop_slots(copied.into_iter().flatten().map(|(_, slot)| slot).collect());
    }

    /// Whether all states of the current command are sent and loaded.
    pub(super) fn is_done(&self) -> bool {
        let is_done = |t: &Transfer| t.followers.is_empty() && t.source.is_none();
        self.current.as_ref().is_none_or(is_done)
    }

    /// This worker's state is copied. Frees a copy that nobody takes.
    pub(super) fn on_copied(&mut self, tensors: Vec<(String, Slot)>, outbox: &mut Outbox) {
        let unused = match &mut self.current {
            Some(transfer) => transfer.copied.replace(tensors),
            None => Some(tensors),
        };
        outbox.drop_slots(unused.into_iter().flatten().map(|(_, slot)| slot).collect());
    }

    /// The state of the source is loaded.
    pub(super) fn on_loaded(&mut self) {
        if let Some(transfer) = &mut self.current {
            transfer.source = None;
        }
    }

    /// Sends this worker's state to the followers, if it is copied. The links must be up.
    pub(super) fn send(&mut self, links: &Links, outbox: &mut Outbox) {
        let Some(transfer) = &mut self.current else { return };
        let (Some(tensors), id) = (transfer.copied.take(), transfer.id) else { return };
        let followers = std::mem::take(&mut transfer.followers);
        let of = u32::try_from(tensors.len()).unwrap_or(u32::MAX);
        for (name, slot) in tensors {
            let head = TensorHead::ReplicaState { id, name, of };
            let to = followers.iter().map(|follower| links.to(*follower, head.clone())).collect();
            outbox.send(to, vec![slot]);
        }
    }

    /// A tensor of another replica's state arrived.
    pub(super) fn on_tensor(&mut self, from: Peer, tensor: StateTensor, outbox: &mut Outbox) {
        let StateTensor { id, name, of, slots } = tensor;
        if self.current.as_ref().is_some_and(|transfer| transfer.id == id && transfer.arrived) {
            return outbox.drop_slots(slots);
        }
        let others = self
            .arrivals
            .iter()
            .filter(|(other, states)| **other != id && states.contains_key(&from));
        if others.count() >= MAX_EARLY {
            return outbox.refuse(from, slots, "sent its state, of which nobody knows");
        }
        let states = self.arrivals.entry(id).or_default();
        let state = states.entry(from).or_insert_with(|| NamedTensors::new(of));
        let result = match of > MAX_STATE_TENSORS || of == 0 {
            true => Err(slots),
            false => state.insert(&name, of, slots),
        };
        if let Err(slots) = result {
            outbox.refuse(from, slots, "sent more of its state than it said, or the same twice");
        }
    }

    /// The task that loads the state of the source, once it is complete. Refuses states that other
    /// workers sent for the current command.
    pub(super) fn poll(&mut self, outbox: &mut Outbox) -> Option<Task<Slot>> {
        let transfer = self.current.as_mut()?;
        let source = Peer::Worker(transfer.source?);
        let mut state = None;
        for (from, arrived) in self.arrivals.remove(&transfer.id).unwrap_or_default() {
            if from == source {
                state = Some(arrived);
            } else {
                let reason = "sent its state, which nobody asked it for";
                outbox.refuse(from, arrived.into_slots(), reason);
            }
        }
        let state = state?;
        if !state.is_complete() {
            self.arrivals.insert(transfer.id, BTreeMap::from([(source, state)]));
            return None;
        }
        transfer.arrived = true;
        Some(Task::Load { tensors: state.into_tensors(), content: LoadContent::WholeState })
    }

    /// The number of tensors that arrived or are copied, and are neither loaded nor sent.
    pub(super) fn held(&self) -> usize {
        let arrived = self.arrivals.values().flat_map(BTreeMap::values).map(NamedTensors::held);
        let copied = self.current.as_ref().and_then(|transfer| transfer.copied.as_ref());
        arrived.sum::<usize>() + copied.map_or(0, Vec::len)
    }

    /// Removes the states that arrived for a command.
    pub(super) fn cancel(&mut self, id: u64) -> Vec<Slot> {
        let states = self.arrivals.remove(&id).unwrap_or_default();
        states.into_values().flat_map(NamedTensors::into_slots).collect()
    }

    /// Removes all states that arrived.
    pub(super) fn cancel_all(&mut self) -> Vec<Slot> {
        let all = std::mem::take(&mut self.arrivals).into_values();
        all.flat_map(BTreeMap::into_values).flat_map(NamedTensors::into_slots).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{links, text};
    use super::*;

    fn arrive(transfer: &mut StateTransfer, id: u64, from: u16, name: &str, slot: u64) -> String {
        let (name, slots, mut outbox) = (name.to_string(), vec![Slot(slot)], Outbox::default());
        let tensor = StateTensor { id, name, of: 2, slots };
        transfer.on_tensor(Peer::Worker(WorkerId(from)), tensor, &mut outbox);
        text(&mut outbox)
    }

    #[test]
    fn a_follower_loads_the_state_of_its_source_alone() {
        let (mut transfer, mut outbox) = (StateTransfer::default(), Outbox::default());
        for (from, name, slot) in [(0, "a", 1), (2, "a", 2), (0, "b", 3)] {
            assert_eq!(arrive(&mut transfer, 4, from, name, slot), "");
        }
        transfer.begin(Transfer::new(4, Vec::new(), Some(WorkerId(0))));
        let task = transfer.poll(&mut outbox);
        let refused = "hang up on worker 2: sent its state, which nobody asked it for\n";
        assert_eq!(text(&mut outbox), format!("drop [2]\n{refused}"));
        let tensors = vec![("a".to_string(), Slot(1)), ("b".to_string(), Slot(3))];
        assert_eq!(task, Some(Task::Load { tensors, content: LoadContent::WholeState }));
        assert_eq!(arrive(&mut transfer, 4, 0, "b", 4), "drop [4]\n", "it has arrived");
        assert!(!transfer.is_done());
        transfer.on_loaded();
        assert!(transfer.is_done());
    }

    #[test]
    fn a_replica_sends_its_state_to_followers_by_way_of_the_boss_if_need_be() {
        let (mut transfer, mut outbox) = (StateTransfer::default(), Outbox::default());
        transfer.begin(Transfer::new(4, vec![WorkerId(1), WorkerId(2)], None));
        transfer.send(&links(0, &[2]), &mut outbox);
        assert!(!transfer.is_done(), "it is not copied yet");
        transfer.on_copied(vec![("a".to_string(), Slot(1))], &mut outbox);
        transfer.send(&links(0, &[2]), &mut outbox);
        let sent = "send [1] as ReplicaState to worker 1, ReplicaState to the boss for worker 2\n";
        assert_eq!(text(&mut outbox), sent);
        assert!(transfer.is_done());
    }

    #[test]
    fn a_copy_that_was_not_sent_is_freed() {
        let (mut transfer, mut outbox) = (StateTransfer::default(), Outbox::default());
        transfer.begin(Transfer::new(4, vec![WorkerId(1)], None));
        transfer.on_copied(vec![("a".to_string(), Slot(1))], &mut outbox);
        transfer.end(&mut outbox);
        assert_eq!(text(&mut outbox), "drop [1]\n");
        transfer.on_copied(vec![("a".to_string(), Slot(2))], &mut outbox);
        assert_eq!(text(&mut outbox), "drop [2]\n", "the command is over");
    }

    #[test]
    fn a_worker_sends_its_state_for_few_commands_at_once() {
        let mut transfer = StateTransfer::default();
        for id in 1..=4 {
            assert_eq!(arrive(&mut transfer, id, 0, "a", id), "");
        }
        let refused = "drop [5]\nhang up on worker 0: sent its state, of which nobody knows\n";
        assert_eq!(arrive(&mut transfer, 5, 0, "a", 5), refused);
        assert_eq!(arrive(&mut transfer, 5, 1, "a", 6), "", "another worker may");
    }
}
