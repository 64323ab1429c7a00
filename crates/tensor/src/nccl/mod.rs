//! NCCL, loaded at run time: sums of tensors over the GPUs of several processes.
//!
//! Building does not need NCCL, and without the library there is an error at run time. The few used
//! functions are called through `libloading`. The `cudarc` crate covers all of NCCL. But it has its
//! own names for the library, requires every symbol of one version, and panics if a symbol or the
//! library is missing.
//!
//! Operations go to CUDA's default stream, on which `tch` works too (a check ensures it). So they
//! run in order with libtorch's operations. Every rank must call the same operations in the same
//! order.
//!
//! The connections between ranks are neither encrypted nor authenticated; see
//! [`restrict_to_loopback`].
//!
//! ```text
//!     communicator.rs -> library.rs -> symbols.rs -> error.rs -> version.rs
//!     network.rs: the interfaces that NCCL may use
//! ```

mod communicator;
mod error;
mod library;
mod network;
mod symbols;
mod version;

pub use communicator::{Communicator, IsInterrupted, Rank};
pub use error::NcclError;
pub use library::Nccl;
pub use network::{machine_id, restrict_to_loopback};
pub use version::{version_name, UNIQUE_ID_BYTES};
