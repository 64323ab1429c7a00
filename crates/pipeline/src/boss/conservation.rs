//! The tensors that a driver holds for the boss's session: every value in which they wait.

use super::{BossSession, Phase};

impl BossSession {
    /// The number of tensors that its driver holds for it, once all effects are taken.
    pub fn held_slots(&self) -> usize {
        let waiting = self.waiting.iter().map(|(_, request)| request.slot_count());
        let current = self.job.as_ref().map_or(0, |job| match &job.phase {
            Phase::Collecting(collector) => collector.held(),
            Phase::Aborting { .. } => 0,
        });
        let background = self.background.values().map(|(_, collector)| collector.held());
        waiting.sum::<usize>() + current + background.sum::<usize>()
    }
}
