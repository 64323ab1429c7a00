//! Shared code of the benchmark programs.

pub mod link_model;
pub mod memory;
