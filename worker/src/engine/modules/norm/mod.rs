//! Normalisation layers.
//!
//! ```text
//!     lower.rs -> layer_norm.rs                  (a backward formula of its own)
//!              -> batch_norm.rs, group_norm.rs, rms_norm.rs (by_autograd.rs finds the gradient)
//! ```

pub(crate) mod batch_norm;
pub(crate) mod group_norm;
pub(crate) mod layer_norm;
pub(crate) mod rms_norm;
