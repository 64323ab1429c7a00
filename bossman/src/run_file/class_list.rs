//! The key `classes` of pictures: the names of the folders, in the order of the classes.

use layerspec::yaml::{Node, TEXT};
use layerspec::Diagnostic;
use std::collections::BTreeSet;

/// Reads `classes`, a list of names.
pub(super) fn class_list(node: &Node) -> Result<Vec<String>, Diagnostic> {
    let nodes = node.list("`classes`", "a list of the names of folders")?;
    if nodes.is_empty() {
        return Err(Diagnostic::new(node.location, "`classes`: give at least one name"));
    }
    let mut known = BTreeSet::new();
    let name = |node: &Node| {
        let name = node.read("a class", &TEXT)?;
        match known.insert(name.clone()) {
            true => Ok(name),
            false => Err(Diagnostic::new(node.location, format!("`classes` has `{name}` twice"))),
        }
    };
    nodes.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_classes_names_each_once() {
        let listed = |text: &str| {
            class_list(&layerspec::yaml::parse(text).unwrap())
                .map_err(|e| e.in_file("run.yaml").to_string())
        };
        assert_eq!(listed("[a, \"0\", 1]").unwrap(), ["a", "0", "1"]);
        assert!(listed("[]").unwrap_err().contains("at least one name"));
        assert!(listed("[a, b, a]").unwrap_err().contains("`classes` has `a` twice"));
        assert!(listed("[1.5]").is_err());
    }
}
