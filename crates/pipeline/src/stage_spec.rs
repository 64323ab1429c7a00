//! The specification of a stage that its worker receives: layers, inputs and outputs.

use crate::ids::StageId;
use layerspec::{Layer, LayerId, ValueId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The specification of a stage that its worker receives.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StageSpec {
    /// Its number.
    pub stage: StageId,
    /// Its layers, in the order of the model.
    pub layers: Vec<Layer>,
    /// The variables that it uses and does not make.
    pub inputs: Vec<StageInput>,
    /// The variables that it makes and that are used elsewhere.
    pub outputs: Vec<StageOutput>,
    /// Layers of other stages whose parameters layers here share, ascending.
    pub tied_copies: Vec<TiedCopy>,
    /// Layers here whose parameters layers of other stages share, ascending.
    pub tied_owners: Vec<TiedOwner>,
}

/// A layer of an earlier stage whose parameters this stage uses too (`share` in the model file).
///
/// This stage holds a copy. Once a step it sends the gradients of each copied layer: for each
/// shared parameter, in PyTorch's order, one tensor for each layer here that uses it, descending.
/// The shape is `[0]` if no gradient reached that use. The owner adds these in descending order of
/// stages, and then those of its own uses, also descending. It updates the parameters and sends the
/// new values back: one tensor for each shared parameter of each copied layer. So the sum does not
/// depend on the cut.
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
    /// The stages that use it, descending. Each has its layers that do so, descending.
    pub to: Vec<(StageId, Vec<Layer>)>,
}

/// An input of a stage.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageInput {
    /// Which variable.
    pub value: ValueId,
    /// The stage that makes it. `None` for an input of the model, which the boss sends.
    pub from: Option<StageId>,
    /// Whether its maker needs its gradient.
    pub needs_grad: bool,
    /// Whether the gradients of its uses here are summed before they are sent. This is so if it
    /// does not change the order of the maker's sum. Otherwise the gradient of each use is sent.
    pub sum_here: bool,
}

/// An output of a stage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageOutput {
    /// Which variable.
    pub value: ValueId,
    /// The stages that use it, descending: the order in which their gradients are summed.
    pub to: Vec<StageId>,
    /// Its place among the model's outputs, if it is one.
    pub model_output: Option<u32>,
    /// Whether gradients come back for it.
    pub needs_grad: bool,
}

pub(crate) fn stage_of(ranges: &[Range<usize>], layer: LayerId) -> usize {
    ranges.iter().position(|r| r.contains(&(layer.0 as usize))).unwrap_or(0)
}
