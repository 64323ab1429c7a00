//! Starts local worker processes, and waits for workers on other machines.
//!
//! ```text
//! fleet_settings (flags of the command line) -> host -> local_processes
//!          last_session (whose workers join again) ^ -> join_wait
//! ```

pub mod fleet_settings;
pub(crate) mod host;
mod join_wait;
pub(crate) mod last_session;
pub(crate) mod local_processes;
