//! Errors of NCCL.

use crate::error::says_device_is_broken;
use crate::nccl::version::version_name;
use crate::TensorError;
use std::path::PathBuf;

/// An error of NCCL, or of finding it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// The library cannot be loaded.
    #[error("{} cannot be loaded: {reason}", file.display())]
    Load {
        /// The library to load.
        file: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// It was loaded, but it is not NCCL, or its version is not supported.
    #[error("{} has no `{symbol}`: it is not NCCL 2.14 or newer", file.display())]
    Symbol {
        /// The loaded library.
        file: PathBuf,
        /// The missing symbol.
        symbol: &'static str,
    },
    /// It is too old.
    #[error(
        "{} is NCCL {}; at least {} is needed",
        file.display(), version_name(*found), version_name(*oldest)
    )]
    TooOld {
        /// The loaded library.
        file: PathBuf,
        /// Its version.
        found: u32,
        /// The oldest supported version.
        oldest: u32,
    },
    /// A call failed.
    #[error("{attempted}: NCCL says {reason}")]
    Call {
        /// The attempted operation, as a noun phrase.
        attempted: &'static str,
        /// NCCL's message.
        reason: String,
    },
    /// Another rank is gone, or the network to it failed.
    #[error("{attempted}: NCCL says {reason}")]
    Remote {
        /// The attempted operation, as a noun phrase.
        attempted: &'static str,
        /// NCCL's message.
        reason: String,
    },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The wait for other ranks was interrupted.
    #[error("{attempted}: called off while it waited for the other replicas")]
    Interrupted {
        /// What waited.
        attempted: &'static str,
    },
    /// Other ranks did not arrive in time.
    #[error(
        "{attempted}: the other replicas were not there within {seconds} seconds; NCCL reaches \
         them over the network interfaces that NCCL_SOCKET_IFNAME names on each machine"
    )]
    Timeout {
        /// What waited.
        attempted: &'static str,
        /// The seconds that it waited.
        seconds: u64,
    },
    /// The communicator has failed before.
    #[error("the communicator among the replicas has failed before")]
    CommunicatorFailed,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] TensorError),
}

impl NcclError {
    /// Whether NCCL had too little memory on the GPU.
    pub fn is_out_of_memory(&self) -> bool {
        const TEXTS: [&str; 3] =
            ["out of memory", "Failed to CUDA malloc", "Failed to CUDA calloc"];
        matches!(self, NcclError::Call { reason, .. }
            if TEXTS.iter().any(|text| reason.contains(text)))
    }

    /// Whether the GPU fails every later call in this process, too.
    pub fn is_device_broken(&self) -> bool {
        match self {
            NcclError::Device(error) => error.is_device_broken(),
            NcclError::Call { reason, .. } => says_device_is_broken(reason),
            _ => false,
        }
    }
}
