//! A stage, as it travels to its worker: its layers, what comes in and what goes out.

use crate::ids::StageId;
use layerspec::{Layer, LayerId, ValueId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A stage as it travels to its worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StageSpec {
    /// Its number.
    pub stage: StageId,
    /// Its layers, in the order of the model.
    pub layers: Vec<Layer>,
    /// Variables it uses and does not make.
    pub inputs: Vec<StageInput>,
    /// Variables it makes that are used elsewhere.
    pub outputs: Vec<StageOutput>,
    /// Layers of other stages whose parameters layers here share, ascending.
    pub tied_copies: Vec<TiedCopy>,
    /// Layers here whose parameters layers of other stages share, ascending.
    pub tied_owners: Vec<TiedOwner>,
}

/// A layer of an earlier stage whose parameters this stage uses too (`share` in the model file).
///
/// This stage holds a copy. Once a step it hands over the gradients: for each copied layer, each shared parameter in
/// PyTorch's order and each layer here that uses it, descending, one tensor (of shape `[0]` where no gradient reached
/// that use). The owner adds these, stages descending, and then its own uses, descending, updates, and gives the new
/// values back: for each copied layer each shared parameter. So the sum does not depend on the cut.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TiedCopy {
    /// The layer that owns the parameters, which are initialised by its name.
    pub owner: Layer,
    /// Its stage.
    pub from: StageId,
    /// The layers here that use them, descending.
    pub users: Vec<LayerId>,
}

/// A layer of this stage whose parameters other stages use too; see [`TiedCopy`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TiedOwner {
    /// The layer.
    pub owner: LayerId,
    /// The stages that use it, descending, each with the layers there that do, descending.
    pub to: Vec<(StageId, Vec<Layer>)>,
}

/// A variable that comes to a stage.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageInput {
    /// Which variable.
    pub value: ValueId,
    /// The stage that makes it; nobody for an input of the model, which the boss sends.
    pub from: Option<StageId>,
    /// Whether its maker wants its gradient.
    pub needs_grad: bool,
    /// Whether the gradients of its uses here are summed before they are sent. They are where that
    /// does not change the order in which the maker would sum them; else each use's is sent.
    pub sum_here: bool,
}

/// A variable that leaves a stage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageOutput {
    /// Which variable.
    pub value: ValueId,
    /// The stages that use it, descending: the order in which their gradients are summed.
    pub to: Vec<StageId>,
    /// Its place among the model's outputs, where it is one.
    pub model_output: Option<u32>,
    /// Whether gradients come back for it.
    pub needs_grad: bool,
}

pub(crate) fn stage_of(ranges: &[Range<usize>], layer: LayerId) -> usize {
    ranges.iter().position(|r| r.contains(&(layer.0 as usize))).unwrap_or(0)
}
