//! The layer part of the model file's reference manual.

use crate::layers::{LayerKind, Manual};
use std::fmt::Write;

/// Every layer with its arguments and their defaults, as Markdown. `docs/reference/model-file.md`
/// holds this text, and a test compares the two.
pub fn layer_manual() -> String {
    let sections: Vec<String> = LayerKind::manual().iter().map(section).collect();
    sections.join("\n")
}

fn section(layer: &Manual) -> String {
    let mut text = format!("### {}\n\n{}\n", layer.name, layer.doc.trim());
    if !layer.arguments.is_empty() {
        text.push_str("\n| argument | value | default | |\n| --- | --- | --- | --- |\n");
    }
    for argument in layer.arguments {
        let default =
            argument.default.map_or("required".to_owned(), |default| format!("`{default}`"));
        let (name, value, doc) = (argument.name, argument.expected, argument.doc.trim());
        let _ = writeln!(text, "| `{name}` | {value} | {default} | {doc} |");
    }
    if !layer.refused.is_empty() {
        text.push_str("\nNot supported:\n\n");
    }
    for refused in layer.refused {
        let _ = writeln!(text, "- `{}`: {}", refused.name, refused.instead);
    }
    text
}
