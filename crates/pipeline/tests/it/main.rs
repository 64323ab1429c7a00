//! The frames, plans, schedules and sessions of the crate, without a fleet. The simulator, which
//! plays a fleet, is a package of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "everything here is part of a test"
)]

mod frames;
mod sessions;
