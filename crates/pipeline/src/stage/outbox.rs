//! The effects that a worker's session has not handed out yet.

use crate::effect::{Destination, Peer, StageEffect, Summing};
use crate::ids::{Slot, Ticket};
use crate::message::{TensorHead, ToBoss};
use crate::replicas::Node;
use crate::samples::DataTask;
use crate::task::Task;
use std::collections::VecDeque;

/// Effects in order, and the tickets of the work among them.
#[derive(Default)]
pub(super) struct Outbox {
    effects: VecDeque<StageEffect>,
    next_ticket: u64,
}

impl Outbox {
    /// Adds an effect.
    pub(super) fn push(&mut self, effect: StageEffect) {
        self.effects.push_back(effect);
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
        self.push(StageEffect::Compute { ticket, task });
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
