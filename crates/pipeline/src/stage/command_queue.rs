//! The commands of the boss: the newest, the waiting and the answered ones.

use crate::message::Command;
use std::collections::VecDeque;

/// The most commands that wait for the current one.
const MAX_WAITING: usize = 32;

/// Commands in order. Only those of followers wait: a follower receives the commands of the others
/// while it still loads its state.
#[derive(Default)]
pub(super) struct CommandQueue {
    /// The newest command that arrived.
    newest: u64,
    waiting: VecDeque<Waiting>,
    /// The newest command that was answered. Tensors that arrive for it later are dropped.
    answered: u64,
    /// The command that updated parameters last, for an abort that comes too late.
    stepped: Option<u64>,
}

/// A command that waits for the current one.
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) body: Command,
    /// The norm of its gradients, if it is already known.
    pub(super) norm: Option<f64>,
}

impl CommandQueue {
    /// A command arrived. Fails if it is not newer than all others: if it ran again, it would wait
    /// for tensors that came before, or undo later work.
    pub(super) fn arrive(&mut self, id: u64) -> Result<(), String> {
        if id <= self.newest {
            return Err("sent a command twice, or out of order".into());
        }
        self.newest = id;
        Ok(())
    }

    /// Whether a command has arrived.
    pub(super) fn have_begun(&self) -> bool {
        self.newest > 0
    }

    /// The command waits for the current one.
    pub(super) fn push(&mut self, id: u64, body: Command) -> Result<(), String> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(format!("sent a command while {MAX_WAITING} others wait"));
        }
        self.waiting.push_back(Waiting { id, body, norm: None });
        Ok(())
    }

    /// Removes the first waiting command.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    /// The norm of the gradients of a command that waits is known.
    pub(super) fn set_norm(&mut self, id: u64, norm: f64) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.id == id) {
            waiting.norm = Some(norm);
        }
    }

    /// Removes a waiting command. Returns whether it waited.
    pub(super) fn cancel(&mut self, id: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.id != id);
        self.waiting.len() < before
    }

    /// A command is answered, or its remains are being cleared.
    pub(super) fn answer(&mut self, id: u64) {
        self.answered = self.answered.max(id);
    }

    /// The newest answered command.
    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether a command is answered. If so, tensors that arrive for it are void.
    pub(super) fn is_answered(&self, id: u64) -> bool {
        id <= self.answered
    }

    /// A command updated parameters, or may have.
    pub(super) fn step(&mut self, id: u64) {
        self.stepped = Some(id);
    }

    /// Whether a command was the last to update parameters.
    pub(super) fn has_stepped(&self, id: u64) -> bool {
        self.stepped == Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_arrive_in_order_and_once() {
        let mut queue = CommandQueue::default();
        assert_eq!(queue.arrive(2), Ok(()));
        assert!(queue.arrive(2).is_err() && queue.arrive(1).is_err());
        assert_eq!(queue.arrive(5), Ok(()));
    }

    #[test]
    fn commands_wait_in_order_with_their_norms() {
        let mut queue = CommandQueue::default();
        for id in 1..=3 {
            assert_eq!(queue.push(id, Command::Digest), Ok(()));
        }
        queue.set_norm(3, 0.5);
        queue.set_norm(4, 1.5);
        assert!(queue.cancel(1) && !queue.cancel(1));
        let waiting: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|w| (w.id, w.norm)).collect();
        assert_eq!(waiting, [(2, None), (3, Some(0.5))]);
    }

    #[test]
    fn a_boss_cannot_fill_the_queue() {
        let mut queue = CommandQueue::default();
        let pushed = (0..100).take_while(|id| queue.push(*id, Command::Digest).is_ok()).count();
        assert_eq!(pushed, MAX_WAITING);
    }
}
