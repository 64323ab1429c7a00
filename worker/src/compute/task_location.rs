//! The place of a task, for its failure.

use pipeline::ids::StageId;
use pipeline::message::Failure;
use pipeline::task::Task;
use runtime::TaskTensor;

/// The stage, microbatch and action, as far as known.
#[derive(Copy, Clone, Default)]
pub(crate) struct TaskLocation {
    stage: Option<StageId>,
    microbatch: Option<u32>,
    action: &'static str,
}

impl TaskLocation {
    pub(crate) fn of(task: &Task<TaskTensor>) -> Self {
        let place = |stage, microbatch, action| TaskLocation { stage, microbatch, action };
        match task {
            Task::Forward { stage, key, .. } => place(Some(*stage), Some(key.index), "forward"),
            Task::Backward { stage, key, input_only: false, .. } => {
                place(Some(*stage), Some(key.index), "backward")
            }
            Task::Backward { stage, key, .. } => {
                place(Some(*stage), Some(key.index), "backward for inputs")
            }
            Task::BackwardWeight { stage, key, .. } => {
                place(Some(*stage), Some(key.index), "backward for weights")
            }
            Task::Reduce { stage, .. } => place(Some(*stage), None, "reduction of gradients"),
            Task::AllReduce { stage, .. } => place(Some(*stage), None, "reduction of gradients"),
            Task::MakeIds { .. } | Task::Communicate { .. } => {
                place(None, None, "making communicators")
            }
            Task::TiedGrads { stage } => {
                place(Some(*stage), None, "handing over of tied gradients")
            }
            Task::GradNorm { stage, .. } => place(Some(*stage), None, "gradient norm"),
            Task::AllGather { stage, .. } => place(Some(*stage), None, "gathering of parameters"),
            Task::EmitShard { stage } => place(Some(*stage), None, "sharing of parameters"),
            Task::Reshard { stage } => place(Some(*stage), None, "letting go of parameters"),
            Task::UpdateTied { stage, .. } => {
                place(Some(*stage), None, "update of tied parameters")
            }
            Task::Measure { .. } => place(None, None, "measuring layers"),
            Task::OptimStep { stage, .. } => place(Some(*stage), None, "optimizer step"),
            Task::Build { .. } => place(None, None, "making its layers"),
            Task::Load { .. } => place(None, None, "loading weights"),
            Task::Files { .. } => place(None, None, "taking files"),
            Task::Snapshot { .. } => place(None, None, "handing out weights"),
            Task::Digest => place(None, None, "comparing weights"),
            Task::SetOptimizer(_) => place(None, None, "setting the optimizer"),
            Task::Discard { .. } => place(None, None, "cancelling"),
        }
    }

    pub(crate) fn annotate(&self, failure: Failure) -> Failure {
        Failure {
            stage: self.stage.or(failure.stage),
            microbatch: self.microbatch,
            action: Some(self.action.into()),
            ..failure
        }
    }
}
