//! A stage at work: its layers, parameters, gradients and optimizer. It is synchronous and has no
//! network. The compute thread owns it and calls it.
//!
//! ```text
//!     stage_engine.rs (Engine), stage_update.rs
//!            --> passes/      CompiledStage, SavedPasses; PassRunner runs forward and backward
//!                   |-> layers/, modules/   the ops of each kind of layer
//!            --> gradients/   GradientStore: sums over microbatches, replicas and tied copies
//!            --> update/      the optimizer step
//!            --> params/      ParamStore: tensors, shards, version; RunningStatistics
//! ```
//!
//! Its results do not depend on the cut. Each layer runs on detached inputs and has a backward pass
//! of its own, whether or not its neighbour is in the same stage. All tensors between layers have
//! one layout, and sums are taken in one order:
//!
//! - The gradient of a value: the loss's, the caller's, then its uses by descending layer and port.
//! - The gradient of a parameter: for each layer that uses it the microbatches in the order of
//!   their backward passes, and at the step the layers, descending. Products that make a weight's
//!   gradient add straight to the sum. Or each microbatch has a gradient of its own, and a tree,
//!   which replicas of the stage can share, sums them ([`Engine::backward_into_tree`]).

mod config;
mod error;
mod gradients;
mod layer_files;
mod layers;
mod layout;
mod modules;
mod params;
mod passes;
mod sizes;
mod stage_engine;
mod stage_update;
mod update;

#[cfg(test)]
mod tests;

pub use config::{LossInputs, Mode, Pass, StageConfig, StageInput};
pub use error::{EngineError, LayerPhase, PeerDataError, PlanError, SequenceError};
pub use gradients::all_reduce::AllReduce;
pub use gradients::trees::{EmitFn, TreeTarget};
pub use layer_files::TorchScriptPolicy;
pub use layers::custom_layers::{CustomLayer, CustomLayers, ForwardContext};
pub(crate) use layout::host_copy;
pub use params::state_dict::StateTensor;
pub use params::tied_params::TensorsByStage;
pub use passes::saved_passes::SavedBytes;
pub(crate) use sizes::sizes;
pub use stage_engine::Engine;
pub use stage_update::StepResult;
pub use update::grad_squares::GradSquares;
pub use update::optimizer_state::{OptimizerStateScope, OptimizerTensor};
pub use update::step::HealthCheck;
