//! The signal that stops the compute thread from waiting for other workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// A flag that tells tasks not to wait for other workers. The driver raises it when a step is
/// cancelled or the run ends. Tasks that wait check it. The compute thread lowers it when the tasks
/// queued before are done ([`pipeline::effect::StageEffect::Interrupt`]).
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Stops all waiting.
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Allows tasks to wait again.
    pub fn lower(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether tasks must not wait.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
