//! What the benchmark's programs share.

pub mod link_model;
pub mod memory;
