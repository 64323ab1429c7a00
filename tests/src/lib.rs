//! Shared code of the whole-program tests: models with data, ways to train them that must not
//! differ, and our programs as processes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "everything here is part of a test"
)]

pub mod address;
mod case;
pub mod cuts;
pub mod device;
pub mod faulty;
mod fleet;
pub mod hostile;
mod memory;
mod one_process;
pub mod programs;
mod reference;
pub mod sample;
mod sockets;
pub mod stateful_model;
pub mod strangers;
mod training;

pub use case::{Case, Steps};
pub use fleet::{find_replicas, outputs, put, step_request, train, TestCluster};
pub use memory::InMemoryCluster;
pub use one_process::one_process;
pub use sockets::{Connectivity, SocketCluster};
pub use training::Training;

/// The number of training steps in every comparison.
pub const STEPS: usize = 20;
/// The number of samples in a step.
pub const BATCH: i64 = 32;
/// The tested numbers of microbatches in a batch. 5 microbatches have 7, 7, 6, 6 and 6 samples.
pub const MICROBATCHES: [u32; 3] = [1, 4, 5];
