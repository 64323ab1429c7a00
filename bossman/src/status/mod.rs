//! The status of a run: for `bossman status`, and for programs.
//!
//! ```text
//! events, rows of a pool -> board (in the boss) -> value -> link::StatusText -> callers
//! query (at the caller) -> the boss, or the folder of a run that has ended -> value -> display
//! ```

mod board;
mod display;
mod query;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use board::StatusBoard;
pub use value::{MemberStatus, Phase, Status, Wait, WorkerStatus};
pub(crate) use value::{MAX_TEXT, MAX_WORKERS};
