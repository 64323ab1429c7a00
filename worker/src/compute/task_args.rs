//! The arguments of tasks that several files carry out.

use crate::engine::HealthCheck;
use pipeline::ids::StageId;
use pipeline::round_outputs::LastPosition;
use pipeline::task::{EarlyOutput, LossTask, TreeLeaf, Update};
use pipeline::watch::FiniteCheck;
use runtime::TaskTensor;

/// Receives the early outputs of a task.
pub(super) type EmitPayload<'a> = &'a mut dyn FnMut(EarlyOutput<TaskTensor>);

/// The arguments of a forward pass.
pub(super) struct ForwardArgs {
    pub(super) inputs: Vec<TaskTensor>,
    /// The outputs that other stages use, by position.
    pub(super) export: Vec<usize>,
    /// The output of which only the last position is exported.
    pub(super) last_position: Option<(usize, LastPosition)>,
    pub(super) loss: Option<LossTask<TaskTensor>>,
    pub(super) finite: FiniteCheck,
}

/// The destination of the gradients of parameters: a tree if there is a branch, otherwise the sums
/// so far.
pub(super) struct GradientRoute<'a> {
    pub(super) branch: Option<TreeLeaf>,
    pub(super) emit: EmitPayload<'a>,
}

/// One step of the optimizer.
pub(super) struct StepArgs {
    pub(super) update: Update,
    /// The gradients of tied parameters from other stages.
    pub(super) tied: Vec<(StageId, Vec<TaskTensor>)>,
    pub(super) check: HealthCheck,
}
