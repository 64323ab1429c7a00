//! Helpers that the tests of several crates share. No program depends on this crate.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::should_implement_trait,
    missing_docs,
    reason = "a helper that fails ends its test"
)]

pub mod fake_gpu;
pub mod fake_nccl;
pub mod golden;
pub mod inputs;
pub mod mutate;
mod random;

pub use random::Random;

use std::path::{Path, PathBuf};

/// Returns the path of a repository file from its path below the root.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
