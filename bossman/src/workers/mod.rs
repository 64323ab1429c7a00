//! Starts local worker processes, and waits for workers on other machines.
//!
//! ```text
//! fleet_settings (flags of the command line) -> host -> local_processes
//!                                                    -> join_wait
//! ```

pub mod fleet_settings;
pub(crate) mod host;
mod join_wait;
pub(crate) mod local_processes;
