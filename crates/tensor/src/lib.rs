//! What libtorch gives beyond `tch`: CUDA loading, tensors as bytes, activation functions with arguments, backward from given output
//! gradients, backward functions of single operations, fused optimizers with visible state, tensors out of parts, random streams,
//! TorchScript modules, a look at tensors' memory, sums over the GPUs of several processes.
//!
//! The one crate that holds `unsafe`. Everything it offers returns errors; a C++ exception never
//! crosses into Rust and nothing here panics on what a caller passes.

#[cfg(target_endian = "big")]
compile_error!("tensors travel as little-endian bytes; a big-endian host is not supported");

pub mod activation;
pub mod cuda;
pub mod device;
mod dtype;
mod error;
mod ffi;
pub mod grad;
pub mod kernels;
pub mod memory;
pub mod nccl;
pub mod optim;
pub mod parts;
pub mod payload;
pub mod products;
pub mod random;
pub mod script;
pub mod threads;

pub use dtype::{dtype_of, kind_of};
pub use error::{Attempt, TensorError};
