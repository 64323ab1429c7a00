//! Sums of gradients, computed beside the compute thread.
//!
//! ```text
//! thread -> sums -> tree                          float32, along the tree over microbatches
//!              +--> compressed -> compression    fewer bits, replica by replica
//!              +--> residuals                    rounding errors, added the next time
//! ```

mod compressed;
pub(crate) mod compression;
mod residuals;
pub(crate) mod sums;
pub(crate) mod thread;
pub(crate) mod tree;
