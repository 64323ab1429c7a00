//! Reads a model file as a checked graph.

use crate::build::build;
use crate::yaml;
use crate::{Diagnostic, LayerGraph, SpecError};
use std::path::Path;

impl LayerGraph {
    /// Reads and checks a model file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SpecError> {
        let path = path.as_ref();
        Self::from_yaml(&yaml::read_file(path)?, &path.display().to_string())
    }

    /// Checks a model given as YAML. Errors name `file_name`, and so does the model if it does
    /// not name itself.
    pub fn from_yaml(text: &str, file_name: &str) -> Result<Self, SpecError> {
        let graph = yaml::parse(text).and_then(|root| build(&root, file_name));
        graph.map_err(|error: Diagnostic| error.in_file(file_name))
    }
}
