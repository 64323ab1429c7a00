//! Admission: the join ticket, keys derived from it, TLS, and the handshake on top.
//!
//! ```text
//! ticket -> identity -> tls -> handshake
//!                                  ^
//!            boss:   listener -> acceptor
//!            worker: join ---------+
//! ```

pub mod acceptor;
pub mod handshake;
pub mod identity;
pub mod join;
pub mod listener;
pub mod ticket;
pub mod tls;
