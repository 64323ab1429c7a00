//! Functions of libtorch that `tch` lacks. Tensors: as bytes, out of the parts of replicas, and
//! facts about their memory. Computing: activation functions with arguments, backward from given
//! output gradients, backward functions of single operations, fused optimizers with visible state,
//! random streams, TorchScript modules, any operator by its name. Devices: CUDA loading, sums over
//! the GPUs of several processes.
//!
//! ```text
//! ffi (cpp/shim.cpp) <- activation, grad, kernels, foreach, optim, random, script, payload,
//!                        memory, threads, determinism
//! cuda: loads libtorch's CUDA half <- device <- nccl: loads NCCL, sums over GPUs
//! payload: tensors as bytes        parts: a tensor out of the parts of several replicas
//! transfer (cpp/transfer.cpp): copies between host and GPU, and events
//! aten (cpp/aten.cpp): operators of PyTorch, their rule and their arguments
//! ```
//!
//! Only this crate and `shm` contain `unsafe`. Every function returns errors. A C++ exception never
//! crosses into Rust, and no argument of a caller causes a panic.

#[cfg(target_endian = "big")]
compile_error!("tensors travel as little-endian bytes; a big-endian host is not supported");

pub mod activation;
pub mod aten;
pub mod cuda;
pub mod determinism;
pub mod device;
mod dtype;
mod error;
mod ffi;
pub mod foreach;
pub mod grad;
mod host_memory;
pub mod kernels;
pub mod memory;
pub mod nccl;
pub mod optim;
pub mod panics;
pub mod parts;
pub mod payload;
pub mod products;
pub mod random;
pub mod script;
pub mod threads;
pub mod transfer;

pub use dtype::{converted, dtype_of, kind_of};
pub use error::{Attempt, TensorError};

/// The version of libtorch, as `2.11.0`.
pub fn libtorch_version() -> String {
    // SAFETY: returns a string literal.
    let version = unsafe { std::ffi::CStr::from_ptr(ffi::bm_libtorch_version()) };
    version.to_string_lossy().into_owned()
}
