//! A worker's support for sums of gradients among GPUs.

use serde::{Deserialize, Serialize};

/// Whether a worker can sum gradients with NCCL, by its own statement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nccl {
    /// The library is loaded.
    Here(NcclInfo),
    /// Why not: it computes elsewhere than on a GPU with CUDA, or there is no library.
    Missing(String),
}

/// A worker's NCCL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclInfo {
    /// As NCCL numbers its versions: 22703 for 2.27.3.
    pub version: u32,
    /// Processes with the same loopback interface have the same; empty if unknown.
    pub machine: String,
    /// The GPU, by a name that no other of the machine has.
    pub gpu: String,
    /// Whether the worker's owner lets NCCL connect to other machines.
    pub beyond_machine: bool,
}
