//! From the model as written to the checked graph: names are looked up, types inferred.

mod builder;
mod cycle;
mod names;
mod warnings;

use crate::spec::{unroll, Spec};
use crate::yaml::Node;
use crate::{Diagnostic, LayerGraph};
use builder::Builder;
use names::Names;
use std::path::Path;

/// Builds the graph of a model file. A model without a name is named as its file.
pub(crate) fn build(root: &Node, file_name: &str) -> Result<LayerGraph, Diagnostic> {
    let spec = Spec::read(root)?;
    let (layers, scopes) = unroll(&spec.layers, spec.layers_location)?;
    let mut names = Names::collect(&spec.inputs, &layers, &scopes)?;
    let mut builder = Builder::new(&spec.inputs);
    for index in 0..layers.len() {
        builder.add(index, &mut names)?;
    }
    builder.check_parameter_names()?;
    let outputs = builder.find_outputs(spec.outputs.as_deref(), &mut names)?;
    let stem = Path::new(file_name).file_stem().and_then(|stem| stem.to_str());
    let name = spec.name.unwrap_or_else(|| stem.unwrap_or("model").to_owned());
    let mut graph = builder.finish(name, outputs);
    graph.warnings = warnings::warnings(&graph, &names, file_name);
    Ok(graph)
}
