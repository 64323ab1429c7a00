//! A stage at work: layers as modules, the compute thread, gradients and the optimizer. The
//! `worker` program dials a boss, receives its stages, and works until the run ends.
//!
//! ```text
//! program/run -> options, output, every_gpu, nccl
//!   |       \-> self_check (a device alone: driver, copies, memory, layers)
//!   |
//!   +-> runtime::serve (sessions, connections)
//!          |  tasks                           | samples
//!          v                                  v
//!       compute/stage_compute              compute/samples (files below --data)
//!          |  payloads: tensors as bytes
//!          v
//!       engine: layers, parameters, gradients, optimizer
//! ```

mod compute;
pub mod engine;
mod program;
mod self_check;
#[cfg(test)]
mod test_device;
mod worker;

pub use compute::stage_compute::StageCompute;
pub use engine::{CustomLayer, ForwardContext};
pub use layerspec::layers::{Arg, Args};
pub use program::options::Options;
pub use tch::Tensor;
pub use tensor::TensorError;
pub use worker::Worker;
