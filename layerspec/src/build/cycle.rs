//! Telling a real cycle from a layer that merely stands too early.

use super::names::{Maker, Names};
use petgraph::algo::astar;
use petgraph::graph::{DiGraph, NodeIndex};

/// The layers that lead from the layer at `user` to the one at `maker`, which it wants to use:
/// "2 -> 3 -> 5 -> 2". None if no such way exists.
pub(super) fn find(names: &Names<'_>, user: usize, maker: usize) -> Option<String> {
    let mut graph = DiGraph::<(), ()>::new();
    let nodes: Vec<NodeIndex> = names.flats.iter().map(|_| graph.add_node(())).collect();
    for (index, flat) in names.flats.iter().enumerate() {
        let written = &flat.written;
        if written.input.is_none() && index > 0 {
            graph.add_edge(nodes[index - 1], nodes[index], ());
        }
        for name in written.input.iter().chain(&written.in_variables) {
            if let Some(Maker::Layer { index: source, .. }) = names.find_anywhere(&name.text, index) {
                graph.add_edge(nodes[source], nodes[index], ());
            }
        }
    }
    let goal = nodes[maker];
    let (_, path) = astar(&graph, nodes[user], |node| node == goal, |_| 1, |_| 0)?;
    let name = |node: &NodeIndex| names.flats[node.index()].name.as_str();
    let steps: Vec<&str> = path.iter().chain(path.first()).map(name).collect();
    Some(match steps.as_slice() {
        [first, second, .., last_but_one, last] if steps.len() > 8 => {
            format!("{first} -> {second} -> ... -> {last_but_one} -> {last}")
        }
        steps => steps.join(" -> "),
    })
}
