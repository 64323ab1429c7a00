//! Plans, schedules, and both sessions one call at a time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "everything here is part of a test"
)]

mod auto;
mod boss;
mod collective;
mod compressed;
mod evaluation;
mod gathering;
mod peer_snapshots;
mod plan;
mod schedules;
mod stage;
