//! The tensors that a driver holds for a session: every machine in which they wait.

use super::session::StageSession;

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
}
