//! Layers that multiply by weights, or look them up.
//!
//! ```text
//!     lower.rs -> linear.rs, conv.rs, embedding.rs   (add to the gradient of the weight in place)
//!              -> bilinear.rs, recurrent.rs,         (by_autograd.rs finds the gradients)
//!                 parameter.rs
//! ```

pub(crate) mod bilinear;
pub(crate) mod conv;
pub(crate) mod embedding;
pub(crate) mod linear;
pub(crate) mod parameter;
pub(crate) mod recurrent;
