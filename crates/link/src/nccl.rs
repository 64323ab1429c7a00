//! A worker's support for NCCL, which sums gradients among GPUs.

use serde::{Deserialize, Serialize};

/// Whether a worker can sum gradients with NCCL, as it reports itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nccl {
    /// The library is loaded.
    Here(NcclInfo),
    /// The reason why it cannot: its device is no GPU with CUDA, or it has no library.
    Missing(String),
}

/// The NCCL of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclInfo {
    /// The version as NCCL numbers it: 22703 for 2.27.3.
    pub version: u32,
    /// A name that processes with the same loopback interface share. Empty if unknown.
    pub machine: String,
    /// A name of the GPU that no other GPU of the machine has.
    pub gpu: String,
    /// Whether the worker's owner allows NCCL to connect to other machines.
    pub beyond_machine: bool,
}
