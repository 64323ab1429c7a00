//! A model as the user has it: a checked YAML file.

use crate::file_kind::FileKind;
use crate::weights::layer_file::LayerFiles;
use crate::BossManError;
use bytes::Bytes;
use layerspec::LayerGraph;
use std::collections::BTreeMap;
use std::path::Path;

/// A model read from YAML, with every shape and name checked.
#[derive(Clone)]
pub struct Model {
    graph: LayerGraph,
    /// What layers are built from in files, by SHA-256.
    files: BTreeMap<String, Bytes>,
}

impl Model {
    /// Reads a model file; `docs/reference/model-file.md` says what it holds.
    ///
    /// ```
    /// let model = bossman::Model::from_file("../examples/models/residual.yaml")?;
    /// assert_eq!(model.graph().name(), "residual-small");
    /// # Ok::<(), bossman::BossManError>(())
    /// ```
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, BossManError> {
        let path = path.as_ref();
        let text = layerspec::yaml::read_file(path)?;
        if FileKind::of(&text) == Some(FileKind::Run) {
            let problem = "is a run file; name a model file, which has `inputs` and `layers`; the \
                           run file names its model after `model:`";
            return Err(BossManError::file(path, problem));
        }
        Self::with_files(
            LayerGraph::from_yaml(&text, &path.display().to_string())?,
            path.parent().unwrap_or_else(|| Path::new(".")),
        )
    }

    /// Reads a model from text. Paths in it are relative to the working folder.
    ///
    /// ```
    /// let text = "{model: m, inputs: {x: [batch, 2]}, layers: [ReLU]}";
    /// let model = bossman::Model::from_yaml(text)?;
    /// # Ok::<(), bossman::BossManError>(())
    /// ```
    pub fn from_yaml(text: &str) -> Result<Self, BossManError> {
        Self::with_files(LayerGraph::from_yaml(text, "model")?, Path::new("."))
    }

    /// Reads the files that layers are made from.
    fn with_files(mut graph: LayerGraph, folder: &Path) -> Result<Self, BossManError> {
        let (mut files, mut layer_files) = (BTreeMap::new(), LayerFiles::of(folder));
        for file in graph.files_mut() {
            let (hash, contents) = layer_files.read(&file)?;
            *file.sha256 = Some(hash.clone());
            files.insert(hash, contents);
        }
        Ok(Model { graph, files })
    }

    /// What layers are built from in files, by SHA-256.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&String, &Bytes)> {
        self.files.iter()
    }

    /// The activations to recompute in the backward pass, if the file does not set it.
    pub(crate) fn set_recompute(&mut self, recompute: layerspec::Recompute) {
        self.graph.default_recompute(recompute);
    }

    /// In which type layers compute their products.
    pub(crate) fn set_precision(&mut self, precision: layerspec::Precision) {
        self.graph.set_precision(precision);
    }

    /// Its layers, variables and shapes.
    pub fn graph(&self) -> &LayerGraph {
        &self.graph
    }
}
