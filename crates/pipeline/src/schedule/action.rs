//! The actions of a worker, and their order.

use crate::ids::StageId;
use serde::{Deserialize, Serialize};

/// One action of a worker. Gradients are summed in the order of microbatches, so every schedule
/// runs a stage's backward passes in ascending order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Action {
    /// The forward pass of a microbatch through a stage.
    Forward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        microbatch: u32,
    },
    /// The backward pass of a microbatch through a stage, both halves at once.
    Backward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        microbatch: u32,
    },
    /// The half of a backward pass that other stages wait for: the gradients of the stage's inputs.
    BackwardInput {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        microbatch: u32,
    },
    /// The half that can wait: the gradients of the stage's parameters.
    BackwardWeight {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        microbatch: u32,
    },
    /// Sums the gradients of the round's microbatches over all replicas of the stage. Only a
    /// schedule that sums along a [tree](crate::replicas::Tree) has it.
    Reduce {
        /// Which stage.
        stage: StageId,
    },
    /// On a stage with tied copies: sends their gradients to the stages that own them.
    ReduceTied {
        /// Which stage.
        stage: StageId,
    },
    /// Sends the norms of the stage's gradients to the boss, which answers with the norm over all
    /// stages.
    GradNorm {
        /// Which stage.
        stage: StageId,
    },
    /// Applies the stage's gradients to its parameters.
    OptimStep {
        /// Which stage.
        stage: StageId,
    },
    /// On a stage whose replicas each update a shard of its parameters: loads the shards of the
    /// others.
    AllGather {
        /// Which stage.
        stage: StageId,
    },
    /// On a stage with tied copies: loads their new values.
    UpdateTied {
        /// Which stage.
        stage: StageId,
    },
    /// On a stage whose replicas shard parameters: sends this replica's shard to the others.
    Share {
        /// Which stage.
        stage: StageId,
    },
    /// On a stage whose replicas shard parameters: frees the shards of the others.
    Reshard {
        /// Which stage.
        stage: StageId,
    },
}

impl Action {
    /// The stage it belongs to.
    pub fn stage(&self) -> StageId {
        match *self {
            Action::Forward { stage, .. }
            | Action::Backward { stage, .. }
            | Action::BackwardInput { stage, .. }
            | Action::BackwardWeight { stage, .. }
            | Action::Reduce { stage }
            | Action::ReduceTied { stage }
            | Action::GradNorm { stage }
            | Action::OptimStep { stage }
            | Action::AllGather { stage }
            | Action::UpdateTied { stage }
            | Action::Share { stage }
            | Action::Reshard { stage } => stage,
        }
    }

    /// The microbatch it works on, if any.
    pub fn microbatch(&self) -> Option<u32> {
        match *self {
            Action::Forward { microbatch, .. }
            | Action::Backward { microbatch, .. }
            | Action::BackwardInput { microbatch, .. }
            | Action::BackwardWeight { microbatch, .. } => Some(microbatch),
            _ => None,
        }
    }

    /// Whether a round may have it several times: visits to a stage gather its parameters anew.
    pub fn may_repeat(&self) -> bool {
        matches!(self, Action::Share { .. } | Action::AllGather { .. } | Action::Reshard { .. })
    }

    /// The same action for another microbatch, if it has one.
    pub(super) fn on(self, other: impl Fn(u32) -> u32) -> Self {
        match self {
            Action::Forward { stage, microbatch } => {
                Action::Forward { stage, microbatch: other(microbatch) }
            }
            Action::Backward { stage, microbatch } => {
                Action::Backward { stage, microbatch: other(microbatch) }
            }
            Action::BackwardInput { stage, microbatch } => {
                Action::BackwardInput { stage, microbatch: other(microbatch) }
            }
            Action::BackwardWeight { stage, microbatch } => {
                Action::BackwardWeight { stage, microbatch: other(microbatch) }
            }
            other => other,
        }
    }

    /// The name of the action, as errors and traces show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Action::Forward { .. } => "forward",
            Action::Backward { .. } => "backward",
            Action::BackwardInput { .. } => "backward for inputs",
            Action::BackwardWeight { .. } => "backward for weights",
            Action::Reduce { .. } => "reduction of gradients",
            Action::ReduceTied { .. } => "handing over of tied gradients",
            Action::GradNorm { .. } => "gradient norm",
            Action::OptimStep { .. } => "optimizer step",
            Action::AllGather { .. } => "gathering of parameters",
            Action::UpdateTied { .. } => "update of tied parameters",
            Action::Share { .. } => "sharing of parameters",
            Action::Reshard { .. } => "letting go of parameters",
        }
    }
}

/// The order in which a worker takes its actions.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Order {
    /// In the order of the list.
    #[default]
    Listed,
    /// Any action that is ready: first gradients that others wait for, then forward passes, then
    /// gradients of parameters, each with the lowest microbatch first. The other actions follow in
    /// the order of the list. See [`Picker`](crate::schedule::Picker).
    Ready {
        /// For every stage of the run, the most microbatches between their forward pass and the
        /// gradients of its inputs.
        in_flight: Vec<u32>,
        /// For every stage, the most microbatches between their forward pass and the end of their
        /// backward pass. Memory limits it.
        held: Vec<u32>,
    },
}
