//! The tensors that a model takes, as far as data must know.

use layerspec::{DType, Dim, LayerGraph, LayerKind, ValueId};
use serde::{Deserialize, Serialize};

/// A tensor that the model takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ExpectedTensor {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// The shape of a sample, with its known sizes. `None` if the model does not state it.
    pub(super) shape: Option<Vec<Option<u64>>>,
    /// Numbers must be below this, if they are looked up in a table.
    pub(super) num_embeddings: Option<u64>,
}

impl ExpectedTensor {
    pub(super) fn value(graph: &LayerGraph, id: ValueId) -> Self {
        let value = graph.value(id);
        let shape = value.ty.dims().iter().skip(1).map(Dim::as_fixed).collect();
        let rows = graph.users(id).iter().filter_map(|user| match &graph.layer(user.layer).kind {
            LayerKind::Embedding(embedding) => Some(embedding.num_embeddings),
            _ => None,
        });
        ExpectedTensor {
            name: value.name.clone(),
            dtype: value.ty.dtype,
            shape: Some(shape),
            num_embeddings: rows.min(),
        }
    }

    /// Returns the sizes of a sample, if all are known.
    pub(super) fn sizes(&self) -> Option<Vec<u64>> {
        self.shape.as_ref()?.iter().copied().collect()
    }

    pub(super) fn shape_in_words(&self) -> String {
        let sizes = self
            .shape
            .iter()
            .flatten()
            .map(|size| size.map_or_else(|| "any".into(), |size| size.to_string()));
        format!("[{}]", sizes.collect::<Vec<String>>().join(", "))
    }
}
