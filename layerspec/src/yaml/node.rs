//! The tree a YAML file becomes.

use crate::Location;

/// One YAML value and its location.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Its first character.
    pub location: Location,
    /// The value.
    pub kind: Kind,
}

/// A YAML value. Plain scalars are typed by YAML 1.2's core schema.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// Nothing, `null` or `~`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text, quoted or not.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping in file order. [`Node::mapping`] refuses duplicate keys, because it knows their
    /// context.
    Map(Vec<Entry>),
}

/// One `key: value` of a mapping.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The key, before the colon.
    pub key: Key,
    /// The value, after the colon.
    pub value: Node,
}

/// A mapping's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// Its first character.
    pub location: Location,
    /// The key as written, without quotes.
    pub text: String,
}
