//! Tells a real cycle from a layer that is merely defined too early.

use crate::spec::UnrolledLayer;
use petgraph::algo::astar;
use petgraph::graph::{DiGraph, NodeIndex};

/// The layers that lead from the layer at `user` to the one at `origin`, whose output it uses: "2
/// -> 3 -> 5 -> 2". `None` if there is no such cycle. `source` is the layer whose output the layer
/// at an index calls by a name.
pub(super) fn find(
    layers: &[UnrolledLayer],
    user: usize,
    origin: usize,
    source: impl Fn(&str, usize) -> Option<usize>,
) -> Option<String> {
    let mut graph = DiGraph::<(), ()>::new();
    let nodes: Vec<NodeIndex> = layers.iter().map(|_| graph.add_node(())).collect();
    for (index, layer) in layers.iter().enumerate() {
        let entry = &layer.entry;
        if entry.input.is_none() && index > 0 {
            graph.add_edge(nodes[index - 1], nodes[index], ());
        }
        for name in entry.input.iter().chain(&entry.in_variables) {
            if let Some(source) = source(&name.text, index) {
                graph.add_edge(nodes[source], nodes[index], ());
            }
        }
    }
    let goal = nodes[origin];
    let (_, path) = astar(&graph, nodes[user], |node| node == goal, |_| 1, |_| 0)?;
    let name = |node: &NodeIndex| layers[node.index()].name.as_str();
    let steps: Vec<&str> = path.iter().chain(path.first()).map(name).collect();
    Some(match steps.as_slice() {
        [first, second, .., last_but_one, last] if steps.len() > 8 => {
            format!("{first} -> {second} -> ... -> {last_but_one} -> {last}")
        }
        steps => steps.join(" -> "),
    })
}
