//! Names of layers and variables.

use crate::yaml::{Kind, Node, Reader, TEXT};
use crate::{Diagnostic, Location};

/// A name and its location.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) location: Location,
}

/// The longest full name of a layer: it becomes part of file keys.
pub(super) const MAX_NAME: usize = 200;

/// A list of names, or one name alone.
pub(super) fn names(node: &Node, what: &str) -> Result<Vec<Name>, Diagnostic> {
    match &node.kind {
        Kind::List(items) => items.iter().map(|item| name(item, what)).collect(),
        _ => Ok(vec![name(node, what)?]),
    }
}

/// A variable's name. The rules for names are checked only at its definition.
pub(super) fn name(node: &Node, what: &str) -> Result<Name, Diagnostic> {
    Ok(Name {
        text: node
            .read(what, &Reader::new("a name (in quotes if it looks like a number)", TEXT.read))?,
        location: node.location,
    })
}

/// A layer's name, dots and all.
pub(super) fn layer_name(node: &Node, what: &str) -> Result<Name, Diagnostic> {
    let name = name(node, what)?;
    if is_name(&name.text) {
        return Ok(name);
    }
    Err(node.unexpected(
        what,
        &format!("1 to {MAX_NAME} letters, digits, `_`, `-` or `.` between them"),
    ))
}

pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    let length = (1..=MAX_NAME).contains(&text.len());
    length && text.chars().all(allowed) && text.split('.').all(|part| !part.is_empty())
}

/// Refuses an invalid name of a variable.
pub(super) fn check_name(name: &Name) -> Result<(), Diagnostic> {
    if is_name(&name.text) {
        return Ok(());
    }
    let message = format!("expected a name of 1 to {MAX_NAME} letters, digits, `_`, `-` or `.`");
    Err(Diagnostic::new(name.location, message))
}
