//! Error feedback: the rounding errors of compressed gradients, added the next time.
//!
//! It goes with the optimizer's steps: where a step is void, so is what was lost on the way to it, and the step done again
//! sends the same bytes. For that it is kept twice from the first exchange of a step to its end.

use pipeline::effect::{Part, Residuals as ResidualUpdate};
use std::collections::HashMap;

/// The residuals of each compressed part, one for each slice.
#[derive(Default)]
pub(crate) struct ErrorFeedback(HashMap<Part, Vec<Residual>>);

/// Of one slice.
#[derive(Default)]
pub(crate) struct Residual {
    /// After the last optimizer step.
    committed: Vec<f32>,
    /// Now, where something was sent since; else memory for that.
    pending: Vec<f32>,
    sent: bool,
}

impl ErrorFeedback {
    /// Of so many slices.
    pub(crate) fn of(&mut self, part: Part, slices: usize) -> &mut [Residual] {
        let residuals = self.0.entry(part).or_default();
        residuals.resize_with(slices, Residual::default);
        residuals
    }

    pub(crate) fn settle(&mut self, what: ResidualUpdate) {
        match what {
            ResidualUpdate::Forget => self.0.clear(),
            ResidualUpdate::Keep | ResidualUpdate::Restore => {
                for residual in self.0.values_mut().flatten().filter(|residual| residual.sent) {
                    if what == ResidualUpdate::Keep {
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
    fn what_a_void_step_lost_is_forgotten() {
        let mut residuals = ErrorFeedback::default();
        assert_eq!(lose(&mut residuals, 1.0), 0.0);
        residuals.settle(ResidualUpdate::Keep);
        assert_eq!(lose(&mut residuals, 2.0), 1.0);
        residuals.settle(ResidualUpdate::Restore);
        // Gathered over several rounds.
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
    fn parts_have_nothing_to_do_with_each_other() {
        let mut residuals = ErrorFeedback::default();
        lose(&mut residuals, 1.0);
        let other = Part { replica: 0, ..PART };
        assert_eq!(residuals.of(other, 2)[1].begin_send(5), [0.0; 5]);
    }
}
