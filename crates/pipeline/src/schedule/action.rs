//! One thing a worker does, and in which order it takes what it has to do.

use crate::ids::StageId;
use serde::{Deserialize, Serialize};

/// One thing a worker does. Gradients are summed in the order of microbatches, so every schedule
/// runs a stage's backward passes in ascending order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Action {
    /// A microbatch through a stage.
    Forward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        microbatch: u32,
    },
    /// A microbatch's gradients through a stage, both halves at once.
    Backward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        microbatch: u32,
    },
    /// The half of a backward pass that others wait for: the gradients of the stage's inputs.
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
    /// The gradients of the round's microbatches become one sum, over all replicas of the stage. It is there where
    /// they are summed along a [tree](crate::replicas::Tree).
    Reduce {
        /// Which stage.
        stage: StageId,
    },
    /// On a stage that uses parameters of other stages: their gradients go to the stages that own them.
    ReduceTied {
        /// Which stage.
        stage: StageId,
    },
    /// The norms of the stage's gradients go to the boss, which answers with the norm over all stages.
    GradNorm {
        /// Which stage.
        stage: StageId,
    },
    /// The stage's gradients applied to its parameters.
    OptimStep {
        /// Which stage.
        stage: StageId,
    },
    /// On a stage whose replicas each update a part of its parameters: it takes what the others have updated, or share.
    AllGather {
        /// Which stage.
        stage: StageId,
    },
    /// On a stage that uses parameters of other stages: it takes their new values.
    UpdateTied {
        /// Which stage.
        stage: StageId,
    },
    /// On a stage whose replicas each keep a part of its parameters: it gives its part to the others.
    Share {
        /// Which stage.
        stage: StageId,
    },
    /// On such a stage: it lets go of the others' parts.
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

    /// The same with another microbatch, where it has one.
    pub(super) fn on(self, other: impl Fn(u32) -> u32) -> Self {
        match self {
            Action::Forward { stage, microbatch } => Action::Forward { stage, microbatch: other(microbatch) },
            Action::Backward { stage, microbatch } => Action::Backward { stage, microbatch: other(microbatch) },
            Action::BackwardInput { stage, microbatch } => {
                Action::BackwardInput { stage, microbatch: other(microbatch) }
            }
            Action::BackwardWeight { stage, microbatch } => {
                Action::BackwardWeight { stage, microbatch: other(microbatch) }
            }
            other => other,
        }
    }

    /// What it does, in a word or two.
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

/// In which order a worker takes its actions.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Order {
    /// In the order of the list.
    #[default]
    Listed,
    /// Whichever is ready: gradients that others wait for first, then forwards, then gradients of parameters, of each
    /// the lowest microbatch; other actions, in the order of the list, once all of these are done. See
    /// [`Picker`](crate::schedule::Picker).
    Ready {
        /// For every stage of the run, how many microbatches may be past its forward and not yet past the gradients of
        /// its inputs.
        in_flight: Vec<u32>,
        /// For every stage, how many may be past its forward and not yet wholly past its backward: what memory allows.
        held: Vec<u32>,
    },
}
