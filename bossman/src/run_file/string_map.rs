//! Mappings whose names the file is free to choose.

use layerspec::yaml::{Kind, Node, TEXT};
use layerspec::Diagnostic;
use std::collections::BTreeMap;

/// Words by names that the file is free to choose.
pub(super) fn string_map(node: &Node, what: &str) -> Result<BTreeMap<String, String>, Diagnostic> {
    let Kind::Map(entries) = &node.kind else {
        return Err(node.unexpected(what, "a mapping of the model's inputs"));
    };
    let names: Vec<&str> = entries.iter().map(|entry| entry.key.text.as_str()).collect();
    // Finds names that are given twice.
    node.mapping(what, "input", &names)?;
    entries
        .iter()
        .map(|entry| Ok((entry.key.text.clone(), entry.value.read(what, &TEXT)?)))
        .collect()
}
