//! How the compute thread is told not to wait any longer for other workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Raised by the driver where a step is cancelled or the run has ended, looked at by whatever waits on the compute thread for
/// others, and lowered there once what was given to it before is over ([`pipeline::effect::StageEffect::Interrupt`]).
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Nobody is to wait.
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Tasks may wait again.
    pub fn lower(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether nobody is to wait.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
