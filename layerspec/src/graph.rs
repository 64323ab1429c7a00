//! The model as a graph of layers and values, checked once and then trusted.

use crate::layers::LayerFile;
use crate::{
    LayerId, LayerKind, Location, ParamSpec, Precision, Recompute, TensorType, ValueId, Warning,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A checked model. Layers are in file order, and every layer's inputs are inputs of the model or
/// outputs of layers above.
#[derive(Clone, Debug)]
pub struct LayerGraph {
    pub(crate) name: String,
    pub(crate) layers: Vec<Layer>,
    pub(crate) values: Vec<Value>,
    pub(crate) inputs: Vec<ValueId>,
    pub(crate) outputs: Vec<ValueId>,
    pub(crate) users: Vec<Vec<Use>>,
    pub(crate) requires_grad: Vec<bool>,
    pub(crate) param_count: u64,
    pub(crate) warnings: Vec<Warning>,
}

/// One layer of a model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Layer {
    /// The layer's number, which is its position in [`LayerGraph::layers`].
    pub id: LayerId,
    /// Its full name, which its parameters' names begin with: `blocks.0.attn`.
    pub name: String,
    /// Its kind, with its arguments.
    pub kind: LayerKind,
    /// Its inputs, by port.
    pub inputs: Vec<ValueId>,
    /// Its outputs, by port.
    pub outputs: Vec<ValueId>,
    /// The earlier layer whose parameters it shares, by name and shape.
    pub share: Option<LayerId>,
    /// Whether the optimizer leaves its parameters unchanged.
    pub frozen: bool,
    /// The activations that its backward pass recomputes; None if the file does not set it.
    pub recompute: Option<Recompute>,
    /// The type in which it computes products.
    pub precision: Precision,
    /// Its location in the file.
    pub location: Location,
}

/// A tensor that flows between layers.
#[derive(Clone, PartialEq, Debug)]
pub struct Value {
    /// The value's number.
    pub id: ValueId,
    /// The name under which the file defines it, or the name of the layer that makes it.
    pub name: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// Its producer.
    pub producer: Producer,
}

/// The source of a value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Producer {
    /// It is the model's input of this position.
    Input(usize),
    /// A layer makes it.
    Layer {
        /// The layer.
        layer: LayerId,
        /// Which of the layer's outputs it is.
        port: usize,
    },
}

/// One use of a value by a layer.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Use {
    /// The layer that takes the value.
    pub layer: LayerId,
    /// Which of the layer's inputs it is.
    pub port: usize,
}

impl LayerGraph {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All layers in file order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// A layer of this graph.
    pub fn layer(&self, id: LayerId) -> &Layer {
        &self.layers[id.index()]
    }

    /// The layer of this full name.
    pub fn layer_by_name(&self, name: &str) -> Option<LayerId> {
        self.layers.iter().find(|layer| layer.name == name).map(|layer| layer.id)
    }

    /// All values: the model's inputs, then the outputs of layers, in file order.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// A value of this graph.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The model's inputs, in file order.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The model's outputs, in file order; the last layer's, if the file names none.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// Every use of a value by a layer, ascending. An output of the model does not count as a use.
    pub fn users(&self, id: ValueId) -> &[Use] {
        &self.users[id.index()]
    }

    /// Whether gradients flow into a value: it is a floating-point number and depends on a
    /// parameter that is trained. Inputs of the model never do.
    pub fn requires_grad(&self, id: ValueId) -> bool {
        self.requires_grad[id.index()]
    }

    /// The symbol for the batch size: the outermost size of the first input, if that is a symbol.
    pub fn batch(&self) -> Option<&str> {
        self.value(*self.inputs.first()?).ty.dims().first()?.as_symbol()
    }

    /// The most positions of a sequence for which every layer has a row or an encoding.
    pub fn max_positions(&self) -> Option<u64> {
        let most = |layer: &Layer| match &layer.kind {
            LayerKind::LearnedPositions(learned) => Some(learned.positions()),
            LayerKind::PositionalEncoding(encoding) => Some(encoding.max_len),
            _ => None,
        };
        self.layers.iter().filter_map(most).min()
    }

    /// Sets the activations that layers recompute in their backward pass, if the file does not set
    /// it.
    pub fn default_recompute(&mut self, recompute: Recompute) {
        for layer in &mut self.layers {
            layer.recompute.get_or_insert(recompute);
        }
    }

    /// Sets the type in which all layers compute products.
    pub fn set_precision(&mut self, precision: Precision) {
        for layer in &mut self.layers {
            layer.precision = precision;
        }
    }

    /// What each layer takes from a file, so that the hash of it can be set.
    pub fn files_mut(&mut self) -> impl Iterator<Item = LayerFile<'_>> {
        self.layers.iter_mut().filter_map(|layer| layer.kind.file_mut())
    }

    /// Warnings about entries of the file that are valid but probably not intended.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Every symbol that stands for a size in the inputs' shapes.
    pub fn symbols(&self) -> BTreeSet<String> {
        let mut symbols = BTreeSet::new();
        for dim in self.inputs.iter().flat_map(|input| self.value(*input).ty.dims()) {
            dim.collect_symbols(&mut symbols);
        }
        symbols
    }

    /// Elements of all trained or frozen parameters; shared ones count once, buffers not at all.
    pub fn param_count(&self) -> u64 {
        self.param_count
    }

    /// The layer's parameters and buffers, without those that it shares with an earlier layer.
    pub fn own_params(&self, id: LayerId) -> Vec<ParamSpec> {
        let tied = self.shared_params(id);
        let params = self.layer(id).kind.params();
        params.into_iter().filter(|param| !tied.contains(&param.name)).collect()
    }

    /// The names of the parameters that the layer shares with an earlier layer.
    pub fn shared_params(&self, id: LayerId) -> Vec<&'static str> {
        let layer = self.layer(id);
        layer.share.map_or(Vec::new(), |other| layer.kind.tied_params(&self.layer(other).kind))
    }
}
