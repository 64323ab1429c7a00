//! Admission: how a worker gets a place in a run, and a connection to the boss and to other
//! workers.
//!
//! ```text
//! boss:    listener -> acceptor -> handshake      status_text: for callers that ask for it
//! worker:  join -> dial    ^
//!            +-------------+      addresses: those of the boss's name
//! ```

pub mod acceptor;
pub mod addresses;
pub(crate) mod dial;
pub mod handshake;
pub mod join;
pub mod listener;
mod status_text;

pub use status_text::StatusText;

#[cfg(test)]
mod tests;
