//! QUIC endpoints: their sockets and settings, and the figures of a path.
//!
//! ```text
//! listening_endpoint -> endpoint -> socket
//!                              +--> network_path
//! ```

pub mod close_codes;
pub mod endpoint;
pub mod listening_endpoint;
pub(crate) mod network_path;
pub mod report;
pub mod socket;
