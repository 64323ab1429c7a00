//! The balance of the tensors that a driver holds for a session.
//!
//! A machine in which tensors wait must be in the sum. Otherwise every round with them fails.

use super::session::StageSession;
use crate::failure::Failure;

impl StageSession {
    /// The number of tensors that its driver holds for it, once all effects are taken.
    pub fn held_slots(&self) -> usize {
        self.inbox.held()
            + self.early_frames.held()
            + self.loading.held()
            + self.transfer.held()
            + self.state_frames.held()
            + self.snapshots.held()
    }

    /// Whether every task and every read has come back.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.reader.is_idle()
    }

    /// Whether no command is current, and with it no sum is pending.
    pub fn is_between_commands(&self) -> bool {
        self.job.is_none()
    }

    /// Fails if a tensor was lost or given back twice. No tensor may be in a local variable then.
    pub(super) fn settle_slots(&mut self) -> Result<(), Failure> {
        let held = self.held_slots();
        self.outbox.settle(held)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{membership, round, text};
    use super::*;

    #[test]
    fn a_round_after_which_tensors_are_lost_fails_and_the_next_does_not() {
        let membership = membership(&[1, 1], 0, None);
        let mut session = StageSession { membership, ..StageSession::default() };
        session.outbox.take(2);
        session.run(1, round(Vec::new()));
        assert_eq!(text(&mut session.outbox), "tell the boss Failed\n");
        session.job = None;
        session.run(2, round(Vec::new()));
        assert_eq!(text(&mut session.outbox), "tell the boss Done\n");
    }
}
