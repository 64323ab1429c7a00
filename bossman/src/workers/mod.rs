//! Starts local worker processes, and waits for workers on other machines.

pub mod fleet_settings;
pub(crate) mod host;
pub(crate) mod local_processes;
