//! Admission: how a worker gets a place in a run, and a connection to the boss and to other
//! workers.
//!
//! ```text
//! boss:    listener -> acceptor -> handshake
//! worker:  join ----------------------^
//! ```

pub mod acceptor;
pub mod handshake;
pub mod join;
pub mod listener;
