//! Numbers that a task hands back once the device has computed them: losses, and sums of squares.

use crate::compute::failures::tensor_failure;
use crate::engine::GradSquares;
use parking_lot::Mutex;
use pipeline::message::{Failure, FailureKind};
use pipeline::task::Outcome;
use pipeline::watch::FiniteCheck;
use runtime::TaskTensor;
use std::sync::Arc;
use tensor::transfer::HostCopy;

/// The part of a task's outcome that the device still computes.
pub(super) enum LateResult {
    Loss(Arc<LateLoss>),
    Squares(GradSquares),
}

/// A loss that the device may still be computing.
pub(super) struct LateLoss {
    copy: Mutex<HostCopy>,
    finite: FiniteCheck,
}

impl LateLoss {
    pub(super) fn new(copy: HostCopy, finite: FiniteCheck) -> Self {
        LateLoss { copy: Mutex::new(copy), finite }
    }

    /// Whether nobody needs to wait for it.
    pub(super) fn is_known(&self) -> bool {
        self.copy.lock().is_made()
    }

    /// The loss. Waits for it.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn read(&self) -> Result<f32, Failure> {
        let numbers = self.copy.lock().numbers().map_err(tensor_failure)?;
        numbers.first().map(|loss| *loss as f32).ok_or_else(|| Failure::new("the loss is empty"))
    }

    /// The loss, if it is finite or need not be. Waits for it.
    ///
    /// # Errors
    /// It is not finite, or the device failed.
    pub(super) fn check(&self) -> Result<f32, Failure> {
        let loss = self.read()?;
        match loss.is_finite() || self.finite == FiniteCheck::Off {
            true => Ok(loss),
            false => Err(not_finite(loss, "")),
        }
    }
}

/// The failure of a loss that is not finite, with the reason if it is known.
pub(super) fn not_finite(loss: f32, why: &str) -> Failure {
    let problem = format!("the loss is {loss}{why}");
    Failure { kind: FailureKind::NotFinite, ..Failure::new(problem) }
}

impl LateResult {
    /// Sets the part of the outcome. Waits for it.
    pub(super) fn complete(self, outcome: &mut Outcome<TaskTensor>) -> Result<(), Failure> {
        match (self, outcome) {
            (LateResult::Loss(late), Outcome::Forward { loss, .. }) => *loss = Some(late.check()?),
            (LateResult::Squares(late), Outcome::Norms { squares }) => {
                *squares = late.read().map_err(tensor_failure)?
            }
            _ => return Err(Failure::new("a result of another task; please report it")),
        }
        Ok(())
    }
}
