//! The outer face: the `BossMan` object, its builder and its calls.
//!
//! ```text
//! builder -> build -> boss_man (BossMan)
//!                       +-> training_calls -> with_recovery -> session::trainer, pool
//!                       +-> state_calls    -> session::weight_transfer, checkpoint
//! ```

pub(crate) mod boss_man;
mod build;
pub(crate) mod builder;
mod state_calls;
#[cfg(test)]
mod tests;
mod training_calls;
mod with_recovery;
