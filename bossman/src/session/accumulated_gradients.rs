//! Gradients of several steps, for one update.

/// Gradients gathered over several steps and not yet used.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) steps: u32,
    /// Samples, or targets, or whatever the loss takes the mean over.
    pub(crate) counted: f64,
    /// What the losses were divided by: what would be counted, were all steps as large as the first; less what float16
    /// has losses multiplied by ([`pipeline::loss_scale`]).
    pub(crate) divisor: f64,
    /// A batch went backward by hand.
    pub(crate) by_hand: bool,
}

impl Gathered {
    /// Whether gradients wait for an update.
    pub(crate) fn wait(&self) -> bool {
        self.steps > 0 || self.by_hand
    }

    pub(crate) fn clear(&mut self) {
        *self = Gathered::default();
    }
}
