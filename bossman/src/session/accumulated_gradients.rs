//! Gradients of several steps, for one update.

/// Gradients gathered over several steps and not yet used.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct AccumulatedGradients {
    pub(crate) steps: u32,
    /// Samples, or targets, or whatever the loss takes the mean over.
    pub(crate) counted: f64,
    /// What the losses were divided by: what would be counted, were all steps as large as the first; less what float16
    /// has losses multiplied by ([`pipeline::loss_scale`]).
    pub(crate) divisor: f64,
    /// A batch went backward by hand.
    pub(crate) has_manual_backward: bool,
}

impl AccumulatedGradients {
    /// Whether gradients wait for an update.
    pub(crate) fn is_pending(&self) -> bool {
        self.steps > 0 || self.has_manual_backward
    }

    pub(crate) fn clear(&mut self) {
        *self = AccumulatedGradients::default();
    }
}
