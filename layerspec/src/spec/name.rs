//! Names of layers and variables.

use crate::yaml::{Kind, Node, Reader, TEXT};
use crate::{Fault, Place};

/// A name and where it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) place: Place,
}

/// The longest full name of a layer: it becomes part of file keys.
pub(super) const MAX_NAME: usize = 200;

/// A list of names, or one name alone.
pub(super) fn names(node: &Node, what: &str) -> Result<Vec<Name>, Fault> {
    match &node.kind {
        Kind::List(items) => items.iter().map(|item| name(item, what)).collect(),
        _ => Ok(vec![name(node, what)?]),
    }
}

/// A variable's name. Whether it fits the rules matters only where it is defined.
pub(super) fn name(node: &Node, what: &str) -> Result<Name, Fault> {
    Ok(Name {
        text: node.read(what, &Reader::new("a name (in quotes if it looks like a number)", TEXT.read))?,
        place: node.place,
    })
}

/// A layer's name, dots and all.
pub(super) fn layer_name(node: &Node, what: &str) -> Result<Name, Fault> {
    let name = name(node, what)?;
    if is_name(&name.text) {
        return Ok(name);
    }
    Err(node.unexpected(what, &format!("1 to {MAX_NAME} letters, digits, `_`, `-` or `.` between them")))
}

pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    let length = (1..=MAX_NAME).contains(&text.len());
    length && text.chars().all(allowed) && text.split('.').all(|part| !part.is_empty())
}

/// Refuses a variable's name that is none.
pub(super) fn check_name(name: &Name) -> Result<(), Fault> {
    if is_name(&name.text) {
        return Ok(());
    }
    let message = format!("expected a name of 1 to {MAX_NAME} letters, digits, `_`, `-` or `.`");
    Err(Fault::new(name.place, message))
}
