//! Guards against training that fails silently.

/// The checks during training, and the reaction. No setting changes a result, except
/// [`NonFinite::Skip`] when it skips a step.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Guards {
    /// The reaction to a loss or gradients that are not finite. With [`crate::Precision::Fp16`]
    /// such steps are always skipped, and the loss scale shrinks.
    pub nonfinite: NonFinite,
    /// The interval, in optimizer steps, at which workers check that each layer has gradients and
    /// changes. The 10th step is checked, too. 0 means never.
    pub layers_every: u64,
    /// The step after which the loss is compared with chance level, if the kind of loss and the
    /// number of classes determine that level. 0 means never.
    pub chance_after: u64,
}

impl Default for Guards {
    fn default() -> Self {
        Guards { nonfinite: NonFinite::Stop, layers_every: 100, chance_after: 1000 }
    }
}

/// The reaction to a loss or gradients that are not finite.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// A step whose loss is not finite changes nothing and is an error, which names the layer at
    /// fault. The same holds for gradients if their norm is known
    /// ([`crate::Builder::clip_grad_norm`], and in a pool). Without a norm, gradients are checked
    /// at the interval of [`Guards::layers_every`]. A loss that the program computes is not
    /// checked.
    #[default]
    Stop,
    /// A step whose gradients are not all finite changes nothing, and training continues. Ten such
    /// steps in a row are an error. Each update waits for the norm of all gradients, as with
    /// [`crate::Builder::clip_grad_norm`].
    Skip,
}
