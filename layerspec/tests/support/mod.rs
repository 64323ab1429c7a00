//! What the test files share.
#![allow(dead_code)] // each test file uses its part

use layerspec::LayerGraph;
use std::path::{Path, PathBuf};

/// The models that come with the project.
pub(crate) const EXAMPLES: [&str; 6] = ["residual", "branchy", "skip", "convnet", "tied", "encoder"];

pub(crate) fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
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
        Ok(graph) => panic!("accepted:\n{}", graph.table(&layerspec::Bindings::new())),
        Err(error) => error.to_string(),
    }
}

/// Compares a text with a checked-in file, or writes the file if UPDATE_GOLDEN is set.
pub(crate) fn golden(path: &Path, actual: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    let different = expected.lines().zip(actual.lines()).position(|(expected, actual)| expected != actual);
    let line = different.unwrap_or_else(|| expected.lines().count().min(actual.lines().count())) + 1;
    assert!(
        expected == actual,
        "{} differs from what the code gives, first in line {line}.\n\
         If the code is right, write the file anew: UPDATE_GOLDEN=1 cargo test -p layerspec\n\
         expected: {:?}\n  actual: {:?}",
        path.display(),
        expected.lines().nth(line - 1),
        actual.lines().nth(line - 1),
    );
}
