//! The largest circle of a crate's files.

use super::modules::Crate;
use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;
use std::collections::{BTreeMap, BTreeSet};

/// Files of which each leads to each other.
pub(super) struct Circle {
    /// None if there is no circle.
    pub(super) files: BTreeSet<String>,
    /// The arrows between them, as text.
    pub(super) arrows: Vec<String>,
}

pub(super) fn largest_circle(of: &Crate) -> Circle {
    let arrows = of.arrows();
    let (mut graph, mut nodes) = (DiGraph::<&str, ()>::new(), BTreeMap::new());
    for arrow in &arrows {
        let mut node = |file| *nodes.entry(file).or_insert_with(|| graph.add_node(file));
        let (from, to) = (node(arrow.from), node(arrow.to));
        graph.add_edge(from, to, ());
    }
    let circles = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1);
    let largest = circles.max_by_key(Vec::len).unwrap_or_default();
    let files: BTreeSet<String> = largest.into_iter().map(|node| graph[node].to_string()).collect();
    let is_inside = |file: &str| files.contains(file);
    let inside = arrows.iter().filter(|arrow| is_inside(arrow.from) && is_inside(arrow.to));
    let text = inside.map(|arrow| format!("{} -> {} ({})", arrow.from, arrow.to, arrow.path));
    // Several paths of a file may be the same.
    let arrows = text.collect::<BTreeSet<String>>().into_iter().collect();
    Circle { files, arrows }
}
