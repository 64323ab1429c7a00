//! Functions of one tensor, element by element or along one dimension.
//!
//! ```text
//!     lower.rs -> explicit_backward.rs, softmax.rs, dropout.rs   (backward formulas of their own)
//!              -> autograd.rs                              (by_autograd.rs finds the gradient)
//! ```

pub(crate) mod autograd;
pub(crate) mod dropout;
pub(crate) mod explicit_backward;
pub(crate) mod softmax;
