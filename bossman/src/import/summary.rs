//! MODEL.md beside an imported model file: where it came from, and what is in it.

use super::family::Output;
use super::leftovers::Leftovers;
use super::proven;
use crate::output::printable;
use crate::weights::tensor_headers::TensorHeaders;
use layerspec::{LayerGraph, LayerKind};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// The names of tensors that are listed.
const SHOWN: usize = 20;

/// What the page tells of.
pub(super) struct Summary<'a> {
    pub(super) folder: &'a Path,
    pub(super) architecture: &'a str,
    pub(super) graph: &'a LayerGraph,
    pub(super) headers: &'a TensorHeaders,
    pub(super) leftovers: &'a Leftovers,
    pub(super) output: Output,
}

impl Summary<'_> {
    /// Writes the page.
    pub(super) fn page(&self) -> String {
        let mut page = String::new();
        let total = self.graph.param_count();
        let folder = printable(&self.folder.to_string_lossy(), 1000);
        writeln!(page, "# {}\n", printable(self.graph.name(), 200)).ok();
        writeln!(page, "Imported by `bossman import` from `{folder}`.\n").ok();
        writeln!(page, "- Architecture: {}", self.architecture).ok();
        writeln!(page, "- Types in the files: {}", self.dtypes()).ok();
        let head = match self.output {
            Output::Logits => "a weight of its own",
            Output::TiedLogits => "tied to the embedding: one weight, trained and saved once",
            Output::HiddenStates => "none; the output is the last hidden states",
            Output::Classes | Output::Numbers | Output::Flags => "labels of the whole sequence",
        };
        writeln!(page, "- Head: {head}\n").ok();
        writeln!(page, "| parameters of | count | share |\n| --- | --- | --- |").ok();
        for (part, count) in self.parts() {
            let share = 100.0 * count as f64 / total.max(1) as f64;
            writeln!(page, "| {part} | {count} | {share:.1} % |").ok();
        }
        writeln!(page, "| all | {total} | 100.0 % |\n").ok();
        page.push_str(&proven::section(self.architecture));
        page.push_str("## Left out\n\n");
        if self.leftovers.tensors.is_empty() {
            page.push_str("No tensor of the files.\n");
        } else {
            page.push_str("Tensors of the files that the model does not use:\n\n");
        }
        for name in self.leftovers.tensors.iter().take(SHOWN) {
            writeln!(page, "- `{}`", printable(name, 200)).ok();
        }
        if let Some(more @ 1..) = self.leftovers.tensors.len().checked_sub(SHOWN) {
            writeln!(page, "- and {more} more").ok();
        }
        page.push_str(
            "\nKeys of config.json that say nothing about layers, such as `use_cache` and \
             `initializer_range`, have no counterpart in the model file.\n",
        );
        page
    }

    /// The types of the files' tensors, each with its number of tensors.
    fn dtypes(&self) -> String {
        let mut counts = BTreeMap::new();
        for (_, tensor) in self.headers.iter() {
            *counts.entry(tensor.dtype).or_insert(0u64) += 1;
        }
        let counts = counts.iter().map(|(dtype, count)| format!("{dtype} ({count} tensors)"));
        counts.collect::<Vec<_>>().join(", ")
    }

    /// The parts of the model with parameters, and how many each has.
    fn parts(&self) -> Vec<(&'static str, u64)> {
        const PARTS: [&str; 6] = ["embedding", "attention", "MLP", "norm", "head", "other layers"];
        let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
        for layer in self.graph.layers() {
            let params = self.graph.own_params(layer.id);
            let count = params.iter().filter_map(layerspec::ParamSpec::elements).sum::<u64>();
            *counts.entry(part_of(&layer.kind, &layer.name)).or_insert(0) += count;
        }
        let count = |part: &'static str| (part, counts.get(part).copied().unwrap_or(0));
        PARTS.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    }
}

/// The part of a model that a layer belongs to.
fn part_of(kind: &LayerKind, name: &str) -> &'static str {
    match kind.name() {
        "Embedding" | "LearnedPositions" | "Parameter" => "embedding",
        "Conv2d" if name.contains("embeddings") => "embedding",
        kind if kind.ends_with("Attention") => "attention",
        kind if kind.ends_with("MLP") => "MLP",
        kind if kind.ends_with("Norm") => "norm",
        "Linear" if name.ends_with("head") || name.ends_with("embed_out") => "head",
        "Linear" if name.contains("classifier") || name.ends_with("pooler.dense") => "head",
        "Linear" if name.contains(".mlp.") || name.contains(".layer.") => "MLP",
        _ => "other layers",
    }
}
