//! A stage at work: layers as modules, the compute thread, gradients, the optimizer, and the `worker`
//! program, which dials a boss, takes its stages and works until told to stop.

mod collective;
mod compute;
pub mod engine;
mod every_gpu;
mod nccl;
mod options;
mod output;
mod payloads;
mod place;
mod program;
mod samples;
mod worker;

pub use compute::StageCompute;
pub use engine::{CustomLayer, ForwardContext};
pub use layerspec::layers::{Arg, Args};
pub use options::Options;
pub use tch::Tensor;
pub use tensor::TensorError;
pub use worker::Worker;
