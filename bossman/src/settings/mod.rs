//! The user's settings, and their consequences for a session.
//!
//! ```text
//! user_settings (Settings) -> planning   the cut for a number of workers
//!   |                     +-> strategy   the consequences for the session
//!   +-> guards
//! ```

pub(crate) mod conflicts;
pub(crate) mod guards;
pub(crate) mod planning;
pub(crate) mod strategy;
pub(crate) mod user_settings;
