//! Gradients of several steps, for one update.

/// Gradients gathered over several steps and not yet used.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) steps: u32,
    pub(crate) samples: u64,
    /// What the losses were divided by: the samples that the steps would have, were they all as large as the first.
    pub(crate) divisor: f64,
}

impl Gathered {
    pub(crate) fn clear(&mut self) {
        *self = Gathered::default();
    }
}
