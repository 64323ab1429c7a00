//! The secrets of a run: the join ticket, the boss's key, and TLS with keys that are derived from
//! the ticket.
//!
//! ```text
//! tls -> identity -> ticket
//!   +--> token_clock
//! ```

pub mod identity;
pub mod ticket;
pub mod tls;
pub(crate) mod token_clock;
