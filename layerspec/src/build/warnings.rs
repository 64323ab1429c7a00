//! Warnings about unused values and layers, and about samples of a batch that are mixed.

use super::names::Names;
use crate::graph::Producer;
use crate::{Layer, LayerGraph, Location, Warning};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{Dfs, Reversed};
use std::collections::BTreeMap;

/// Variables and inputs that nothing uses, layers that no output depends on, and layers that go
/// from sample to sample; each location once, even if it is repeated.
pub(super) fn warnings(graph: &LayerGraph, names: &Names<'_>, file: &str) -> Vec<Warning> {
    let mut messages: BTreeMap<Location, String> = BTreeMap::new();
    for (location, name) in names.unused() {
        messages.insert(location, format!("`{name}` is never used"));
    }
    let live = live_layers(graph);
    for layer in graph.layers() {
        if !live[layer.id.index()] {
            let (name, kind) = (&layer.name, layer.kind.name());
            let message = format!("layer {name} ({kind}): no output of the model depends on it");
            messages.entry(layer.location).or_insert(message);
        }
        if mixes_samples(graph, layer) {
            let (name, kind) = (&layer.name, layer.kind.name());
            let message = format!(
                "layer {name} ({kind}): it goes from sample to sample of the batch; `batch_first: \
                 true` keeps to each sample"
            );
            messages.entry(layer.location).or_insert(message);
        }
        if works_across_samples(graph, layer) {
            let (name, kind) = (&layer.name, layer.kind.name());
            let message = format!(
                "layer {name} ({kind}): it works across the samples of a batch, and sees one \
                 microbatch at a time, so the result depends on `microbatches`"
            );
            messages.entry(layer.location).or_insert(message);
        }
    }
    let warning = |(location, message)| Warning { file: file.to_owned(), location, message };
    messages.into_iter().map(warning).collect()
}

/// Whether a layer takes the batch for positions of a sequence. With a batch-first input, PyTorch's
/// default does so, and results would depend on the cut into microbatches.
fn mixes_samples(graph: &LayerGraph, layer: &Layer) -> bool {
    let positions = layer.inputs.first().and_then(|input| graph.value(*input).ty.dims().first());
    let is_batch =
        graph.batch().is_some() && positions.and_then(|dim| dim.as_symbol()) == graph.batch();
    is_batch && layer.kind.mixes_outermost()
}

/// Whether a layer mixes or selects samples, because an argument names the dimension of the batch.
fn works_across_samples(graph: &LayerGraph, layer: &Layer) -> bool {
    let Some((batch, input)) = graph.batch().zip(layer.inputs.first()) else { return false };
    let dims = graph.value(*input).ty.dims();
    let mut mixed = dims.iter().enumerate().filter(|(_, size)| size.as_symbol() == Some(batch));
    mixed.any(|(dim, _)| layer.kind.mixes_along(dim, dims.len()))
}

/// For each layer: whether an output of the model depends on it.
fn live_layers(graph: &LayerGraph) -> Vec<bool> {
    let mut uses = DiGraph::<(), ()>::new();
    let nodes: Vec<NodeIndex> = graph.layers().iter().map(|_| uses.add_node(())).collect();
    let producer = |value| match graph.value(value).producer {
        Producer::Layer { layer, .. } => Some(nodes[layer.index()]),
        Producer::Input(_) => None,
    };
    for layer in graph.layers() {
        for source in layer.inputs.iter().filter_map(|input| producer(*input)) {
            uses.add_edge(source, nodes[layer.id.index()], ());
        }
    }
    let mut live = vec![false; nodes.len()];
    let mut search = Dfs::empty(Reversed(&uses));
    for output in graph.outputs().iter().filter_map(|output| producer(*output)) {
        search.move_to(output);
        while let Some(node) = search.next(Reversed(&uses)) {
            live[node.index()] = true;
        }
    }
    live
}
