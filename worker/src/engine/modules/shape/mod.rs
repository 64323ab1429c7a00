//! Layers without parameters that join, cut, pool or reshape tensors.
//!
//! ```text
//!     lower.rs -> reshape.rs               (views of one tensor)
//!              -> join.rs                  (several tensors into one)
//!              -> slice.rs                 (parts of a tensor, sums and means)
//!              -> pool.rs, image.rs        (windows and pixels)
//!     attention/transformer.rs -> join.rs  (residual connections)
//! ```

pub(crate) mod image;
pub(crate) mod join;
pub(crate) mod pool;
pub(crate) mod reshape;
pub(crate) mod slice;
