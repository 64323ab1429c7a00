//! `vars:` and the `${...}` that stand for them.

use crate::error::quoted;
use crate::expression::{self, Number};
use crate::yaml::{Entry, Kind, Node};
use crate::{nearest, Diagnostic};
use std::collections::BTreeMap;

/// The file's variables. Each may use those above it.
#[derive(Default, Debug)]
pub(crate) struct Vars(BTreeMap<String, Number>);

impl Vars {
    /// Reads the value of the key `vars`.
    pub(crate) fn read(node: &Node) -> Result<Vars, Diagnostic> {
        let mut vars = Vars::default();
        let Kind::Map(entries) = &node.kind else {
            return Err(node.unexpected("`vars`", "a mapping of names to numbers"));
        };
        for Entry { key, value } in entries {
            if !is_identifier(&key.text) {
                return Err(Diagnostic::new(
                    key.location,
                    format!("{} is no name for a variable", quoted(&key.text)),
                ));
            }
            let number = match vars.substitute(value)?.kind {
                Kind::Int(int) => Number::Int(int),
                Kind::Float(float) if float.is_finite() => Number::Float(float),
                _ => return Err(value.unexpected(&quoted(&key.text), "a number")),
            };
            if vars.0.insert(key.text.clone(), number).is_some() {
                return Err(Diagnostic::new(
                    key.location,
                    format!("variable {} is given twice", quoted(&key.text)),
                ));
            }
        }
        Ok(vars)
    }

    /// The node with every `${...}` in it replaced: alone it becomes a number, within a text its
    /// digits.
    pub(crate) fn substitute(&self, node: &Node) -> Result<Node, Diagnostic> {
        let kind = match &node.kind {
            Kind::Text(text) if text.contains("${") => self.in_text(text, node)?,
            Kind::List(items) => Kind::List(
                items.iter().map(|item| self.substitute(item)).collect::<Result<_, _>>()?,
            ),
            Kind::Map(entries) => Kind::Map(
                entries
                    .iter()
                    .map(|Entry { key, value }| {
                        Ok(Entry { key: key.clone(), value: self.substitute(value)? })
                    })
                    .collect::<Result<_, Diagnostic>>()?,
            ),
            other => other.clone(),
        };
        Ok(Node { location: node.location, kind })
    }

    fn in_text(&self, text: &str, node: &Node) -> Result<Kind, Diagnostic> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (inside, behind) = after.split_once('}').ok_or_else(|| {
                Diagnostic::new(node.location, format!("{}: `${{` without `}}`", quoted(text)))
            })?;
            let number = self.eval(inside, node)?;
            if before.is_empty() && behind.is_empty() && filled.is_empty() {
                return Ok(match number {
                    Number::Int(int) => Kind::Int(int),
                    Number::Float(float) => Kind::Float(float),
                });
            }
            filled.push_str(before);
            filled.push_str(&number.to_string());
            rest = behind;
        }
        filled.push_str(rest);
        Ok(Kind::Text(filled))
    }

    fn eval(&self, expression: &str, node: &Node) -> Result<Number, Diagnostic> {
        let lookup = |name: &str| self.0.get(name).copied();
        expression::eval(expression, &lookup).map_err(|error| {
            let near = match &error {
                expression::Error::Unknown(name) => {
                    nearest(name, self.0.keys().map(String::as_str))
                }
                _ => None,
            };
            Diagnostic::new(
                node.location,
                format!("{}: {error}", quoted(&format!("${{{expression}}}"))),
            )
            .suggesting(near)
        })
    }
}

/// Whether a text is a letter or `_`, followed by letters, digits and `_`.
pub(crate) fn is_identifier(text: &str) -> bool {
    let starts_well = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    starts_well && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}
