//! Helpers of the test files.
#![allow(dead_code)] // each test file uses its part

pub(crate) mod sound;

use layerspec::LayerGraph;
use std::path::PathBuf;

/// The models that come with the project.
pub(crate) const EXAMPLES: [&str; 6] =
    ["residual", "branchy", "skip", "convnet", "tied", "encoder"];

pub(crate) fn root(path: &str) -> PathBuf {
    testkit::repository(path)
}

pub(crate) fn example(name: &str) -> LayerGraph {
    LayerGraph::from_file(root(&format!("examples/models/{name}.yaml"))).unwrap()
}

pub(crate) fn model(yaml: &str) -> LayerGraph {
    LayerGraph::from_yaml(yaml, "model.yaml").unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

/// The error of a model file that must be refused.
pub(crate) fn refused(yaml: &str) -> String {
    match LayerGraph::from_yaml(yaml, "model.yaml") {
        Ok(graph) => panic!("accepted:\n{}", graph.summary(&layerspec::Bindings::new())),
        Err(error) => error.to_string(),
    }
}
