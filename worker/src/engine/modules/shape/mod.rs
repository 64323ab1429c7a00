//! Layers without parameters that join, cut, pool or reshape tensors.
//!
//! ```text
//!     lower.rs -> reshape.rs               (views of one tensor)
//!              -> join.rs                  (several tensors into one)
//!              -> slice.rs, index.rs       (parts of a tensor, sums and means)
//!              -> arrange.rs               (elements moved, reversed, repeated)
//!              -> pool.rs, image.rs        (windows and pixels)
//!                   -> by_products.rs, volume.rs (what GPUs have no deterministic kernel for)
//!     attention/transformer.rs -> join.rs  (residual connections)
//! ```

pub(crate) mod arrange;
mod by_products;
pub(crate) mod image;
pub(crate) mod index;
pub(crate) mod join;
pub(crate) mod pool;
pub(crate) mod reshape;
pub(crate) mod slice;
mod volume;
