//! Starts local worker processes, and waits for workers on other machines.
//!
//! ```text
//! fleet_settings (flags of the command line) -> host (waits) -> local_processes
//! ```

pub mod fleet_settings;
pub(crate) mod host;
pub(crate) mod local_processes;
