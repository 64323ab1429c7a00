//! Admission: how a worker gets a place in a run, and a connection to the boss and to other
//! workers.
//!
//! ```text
//! boss:    listener -> acceptor -> handshake
//! worker:  join -> dial    ^
//!            +-------------+      addresses: those of the boss's name
//! ```

pub mod acceptor;
pub mod addresses;
mod dial;
pub mod handshake;
pub mod join;
pub mod listener;

#[cfg(test)]
mod tests;
