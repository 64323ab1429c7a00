//! Warnings about what a model computes or names for nothing.

use super::names::Names;
use crate::graph::Source;
use crate::{LayerGraph, Place, Warning};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{Dfs, Reversed};
use std::collections::BTreeMap;

/// Variables and inputs that nothing uses, and layers that no output depends on; each place once,
/// however often it is repeated.
pub(super) fn warnings(graph: &LayerGraph, names: &Names<'_>, file: &str) -> Vec<Warning> {
    let mut messages: BTreeMap<Place, String> = BTreeMap::new();
    for (place, name) in names.unused() {
        messages.insert(place, format!("`{name}` is never used"));
    }
    let live = live_layers(graph);
    for layer in graph.layers() {
        if !live[layer.id.index()] {
            let (name, kind) = (&layer.name, layer.kind.name());
            let message = format!("layer {name} ({kind}): no output of the model depends on it");
            messages.entry(layer.place).or_insert(message);
        }
    }
    let warning = |(place, message)| Warning { file: file.to_owned(), place, message };
    messages.into_iter().map(warning).collect()
}

/// For each layer: whether an output of the model depends on it.
fn live_layers(graph: &LayerGraph) -> Vec<bool> {
    let mut uses = DiGraph::<(), ()>::new();
    let nodes: Vec<NodeIndex> = graph.layers().iter().map(|_| uses.add_node(())).collect();
    let maker = |value| match graph.value(value).made_by {
        Source::Layer { layer, .. } => Some(nodes[layer.index()]),
        Source::Input(_) => None,
    };
    for layer in graph.layers() {
        for source in layer.inputs.iter().filter_map(|input| maker(*input)) {
            uses.add_edge(source, nodes[layer.id.index()], ());
        }
    }
    let mut live = vec![false; nodes.len()];
    let mut search = Dfs::empty(Reversed(&uses));
    for output in graph.outputs().iter().filter_map(|output| maker(*output)) {
        search.move_to(output);
        while let Some(node) = search.next(Reversed(&uses)) {
            live[node.index()] = true;
        }
    }
    live
}
