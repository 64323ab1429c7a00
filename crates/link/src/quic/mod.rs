//! QUIC endpoints: their sockets and settings, and what is measured of a path.
//!
//! ```text
//! listening_endpoint -> endpoint -> socket
//!                 +-----> network_path        probe -> report
//! ```

pub mod close_codes;
pub mod endpoint;
pub mod listening_endpoint;
pub(crate) mod network_path;
pub(crate) mod probe;
pub mod report;
pub mod socket;
pub(crate) mod token_clock;
