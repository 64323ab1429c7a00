//! Sums of gradients beside the compute thread.
//!
//! ```text
//! thread -> sums -> tree                 along the tree over microbatches, in float32
//!              +--> compressed -> compression    replica by replica, in fewer bits
//!              +--> residuals            what compression lost, added the next time
//! ```

mod compressed;
pub(crate) mod compression;
mod residuals;
pub(crate) mod sums;
pub(crate) mod thread;
pub(crate) mod tree;
