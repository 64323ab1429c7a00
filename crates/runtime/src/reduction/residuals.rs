//! Error feedback: the rounding errors of compressed gradients, added the next time.
//!
//! Residuals belong to optimizer steps. If a step is void, its rounding errors are void, too, and
//! the repeated step sends the same bytes. So residuals are stored twice from the first exchange of
//! a step to its end.

use pipeline::effect::{Part, Residuals as ResidualUpdate};
use std::collections::HashMap;

/// The residuals of each compressed part, one for each slice.
#[derive(Default)]
pub(crate) struct ErrorFeedback(HashMap<Part, Vec<Residual>>);

/// The residual of one slice.
#[derive(Default)]
pub(crate) struct Residual {
    /// The rounding errors after the last optimizer step.
    committed: Vec<f32>,
    /// The current rounding errors, if something was sent since then. Otherwise unused memory.
    pending: Vec<f32>,
    sent: bool,
}

impl ErrorFeedback {
    /// Returns the residuals of a part with this number of slices.
    pub(crate) fn of(&mut self, part: Part, slices: usize) -> &mut [Residual] {
        let residuals = self.0.entry(part).or_default();
        residuals.resize_with(slices, Residual::default);
        residuals
    }

    /// Keeps, restores or clears the residuals.
    pub(crate) fn settle(&mut self, update: ResidualUpdate) {
        match update {
            ResidualUpdate::Forget => self.0.clear(),
            ResidualUpdate::Keep | ResidualUpdate::Restore => {
                for residual in self.0.values_mut().flatten().filter(|residual| residual.sent) {
                    if update == ResidualUpdate::Keep {
                        std::mem::swap(&mut residual.committed, &mut residual.pending);
                    }
                    residual.sent = false;
                }
            }
        }
    }
}

impl Residual {
    /// The residual of `len` numbers, which the new rounding errors replace.
    pub(crate) fn begin_send(&mut self, len: usize) -> &mut [f32] {
        if !self.sent {
            self.committed.resize(len, 0.0);
            self.pending.clone_from(&self.committed);
        }
        self.sent = true;
        self.pending.resize(len, 0.0);
        &mut self.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::ids::StageId;

    const PART: Part = Part { stage: StageId(0), bucket: 1, replica: 1 };

    fn lose(residuals: &mut ErrorFeedback, lost: f32) -> f32 {
        let residual = residuals.of(PART, 1)[0].begin_send(3);
        let before = residual[0];
        residual.fill(lost);
        before
    }

    #[test]
    fn residuals_of_a_void_step_are_restored() {
        let mut residuals = ErrorFeedback::default();
        assert_eq!(lose(&mut residuals, 1.0), 0.0);
        residuals.settle(ResidualUpdate::Keep);
        assert_eq!(lose(&mut residuals, 2.0), 1.0);
        residuals.settle(ResidualUpdate::Restore);
        // Gradients are accumulated over several rounds.
        assert_eq!(lose(&mut residuals, 3.0), 1.0, "as before the void step");
        assert_eq!(lose(&mut residuals, 4.0), 3.0);
        residuals.settle(ResidualUpdate::Restore);
        assert_eq!(lose(&mut residuals, 5.0), 1.0);
        residuals.settle(ResidualUpdate::Keep);
        // Nothing was sent in between.
        residuals.settle(ResidualUpdate::Restore);
        residuals.settle(ResidualUpdate::Keep);
        assert_eq!(lose(&mut residuals, 6.0), 5.0);
        residuals.settle(ResidualUpdate::Forget);
        assert_eq!(lose(&mut residuals, 7.0), 0.0);
    }

    #[test]
    fn parts_have_separate_residuals() {
        let mut residuals = ErrorFeedback::default();
        lose(&mut residuals, 1.0);
        let other = Part { replica: 0, ..PART };
        assert_eq!(residuals.of(other, 2)[1].begin_send(5), [0.0; 5]);
    }
}
