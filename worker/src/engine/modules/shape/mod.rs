//! Layers without parameters that join, cut, pool or reshape tensors.
//!
//! ```text
//!     lower.rs -> reshape.rs               (views of one tensor)
//!              -> join.rs                  (several tensors into one)
//!              -> slice.rs                 (parts of a tensor, sums and means)
//!              -> pool.rs, image.rs        (windows and pixels)
//!                   -> by_products.rs      (what GPUs have no deterministic kernel for)
//!     attention/transformer.rs -> join.rs  (residual connections)
//! ```

mod by_products;
pub(crate) mod image;
pub(crate) mod join;
pub(crate) mod pool;
pub(crate) mod reshape;
pub(crate) mod slice;
