//! QUIC endpoints: their sockets and settings, and what is measured of a path.
//!
//! ```text
//! listening -> endpoint -> socket
//!                 +-----> path        probe -> report
//! ```

pub mod endpoint;
pub mod listening;
pub(crate) mod path;
pub(crate) mod probe;
pub mod report;
pub(crate) mod since_start;
pub mod socket;
