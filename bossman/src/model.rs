//! A model as the user has it: a checked YAML file.

use crate::BossManError;
use layerspec::LayerGraph;
use std::path::Path;

/// A model read from YAML, with every shape and name checked.
#[derive(Clone)]
pub struct Model {
    graph: LayerGraph,
}

impl Model {
    /// Reads a model file; `docs/model-file.md` says what it holds.
    ///
    /// ```
    /// let model = bossman::Model::from_file("../examples/models/residual.yaml")?;
    /// assert_eq!(model.graph().name(), "residual-small");
    /// # Ok::<(), bossman::BossManError>(())
    /// ```
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, BossManError> {
        Ok(Model { graph: LayerGraph::from_file(path)? })
    }

    /// Reads a model from text.
    ///
    /// ```
    /// let model = bossman::Model::from_yaml("{model: m, inputs: {x: [batch, 2]}, layers: [ReLU]}")?;
    /// # Ok::<(), bossman::BossManError>(())
    /// ```
    pub fn from_yaml(text: &str) -> Result<Self, BossManError> {
        Ok(Model { graph: LayerGraph::from_yaml(text, "model")? })
    }

    /// What layers compute again in their backward pass, where the file does not say.
    pub(crate) fn set_recompute(&mut self, recompute: layerspec::Recompute) {
        self.graph.default_recompute(recompute);
    }

    /// Its layers, variables and shapes.
    pub fn graph(&self) -> &LayerGraph {
        &self.graph
    }
}
