//! Reading nodes as typed values, with one style of error.

use super::{Entry, Key, Kind, Node};
use crate::error::quoted;
use crate::suggest::nearest;
use crate::{Diagnostic, Location};

/// How a node becomes a `T`, and what to call a `T` when it doesn't.
#[derive(Copy, Clone, Debug)]
pub struct Reader<T: 'static> {
    /// The expected value, in the words of errors and of the reference manual: "a whole number, 1
    /// or more".
    pub expected: &'static str,
    /// The value, or None when the node is something else.
    pub read: fn(&Node) -> Option<T>,
    /// The keywords allowed as the value, if it is one of a few; for "did you mean".
    pub choices: &'static [&'static str],
    /// The mistake inside a node that `read` refuses, if there is more to say than what was
    /// expected: which key of a mapping is wrong.
    pub mistake: fn(&Node) -> Option<Diagnostic>,
}

impl<T> Reader<T> {
    /// A reader of values that are not one of a few keywords.
    pub const fn new(expected: &'static str, read: fn(&Node) -> Option<T>) -> Self {
        Reader { expected, read, choices: &[], mistake: |_| None }
    }

    /// A reader of one of a few keywords.
    pub const fn keyword(
        expected: &'static str,
        choices: &'static [&'static str],
        read: fn(&Node) -> Option<T>,
    ) -> Self {
        Reader { expected, read, choices, mistake: |_| None }
    }

    /// A reader of mappings, whose errors name the key at fault.
    pub const fn nested(
        expected: &'static str,
        read: fn(&Node) -> Option<T>,
        mistake: fn(&Node) -> Option<Diagnostic>,
    ) -> Self {
        Reader { expected, read, choices: &[], mistake }
    }
}

impl Node {
    /// The node as `reader` reads it. `what` names it in the error: "`lr`".
    pub fn read<T>(&self, what: &str, reader: &Reader<T>) -> Result<T, Diagnostic> {
        (reader.read)(self).ok_or_else(|| {
            (reader.mistake)(self).unwrap_or_else(|| {
                let near =
                    self.as_text().and_then(|text| nearest(text, reader.choices.iter().copied()));
                self.unexpected(what, reader.expected).suggesting(near)
            })
        })
    }

    /// The error for a node that is not what it should be.
    pub fn unexpected(&self, what: &str, expected: &str) -> Diagnostic {
        Diagnostic::new(
            self.location,
            format!("{what}: expected {expected}, found {}", self.describe()),
        )
    }

    /// The node's text, if it is text.
    pub fn as_text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The node's items. `what` names it in the error ("`layers`"); `expected` says what it should
    /// be.
    pub fn list(&self, what: &str, expected: &str) -> Result<&[Node], Diagnostic> {
        match &self.kind {
            Kind::List(items) => Ok(items),
            _ => Err(self.unexpected(what, expected)),
        }
    }

    /// The node as a mapping all of whose keys are among `known`, each at most once. `what` names
    /// the mapping in errors, `noun` one of its keys ("key", "argument"). Nothing at all is the
    /// empty mapping.
    pub fn mapping<'n>(
        &'n self,
        what: &'n str,
        noun: &'n str,
        known: &[&str],
    ) -> Result<Mapping<'n>, Diagnostic> {
        let entries: &[Entry] = match &self.kind {
            Kind::Map(entries) => entries,
            Kind::Null => &[],
            _ => return Err(self.unexpected(what, &format!("a mapping of {noun}s"))),
        };
        for (position, Entry { key, .. }) in entries.iter().enumerate() {
            if !known.contains(&key.text.as_str()) {
                return Err(key.unknown(noun, known));
            }
            if let Some(first) = entries[..position].iter().find(|first| first.key.text == key.text)
            {
                let (text, line) = (&key.text, first.key.location.line);
                return Err(Diagnostic::new(
                    key.location,
                    format!("{noun} `{text}` is given twice, first in line {line}"),
                ));
            }
        }
        Ok(Mapping { location: self.location, noun, entries })
    }

    /// The node as a mapping of any keys, each at most once, in the order of the file.
    pub fn entries<'n>(
        &'n self,
        what: &'n str,
        noun: &'n str,
    ) -> Result<Vec<(&'n str, &'n Node)>, Diagnostic> {
        let keys: Vec<&str> = match &self.kind {
            Kind::Map(entries) => entries.iter().map(|entry| entry.key.text.as_str()).collect(),
            _ => Vec::new(),
        };
        let mapping = self.mapping(what, noun, &keys)?;
        Ok(mapping.entries.iter().map(|entry| (entry.key.text.as_str(), &entry.value)).collect())
    }

    /// The node as a choice with arguments: a bare name (`ReLU`) or a mapping with one key
    /// (`Linear: {...}`). `what` names the node in the error; `noun` says what is chosen ("a
    /// loss").
    pub fn choice(&self, what: &str, noun: &str) -> Result<Choice<'_>, Diagnostic> {
        match &self.kind {
            Kind::Text(name) => Ok(Choice { name, location: self.location, arguments: None }),
            Kind::Map(entries) if entries.len() == 1 => {
                let Entry { key, value } = &entries[0];
                Ok(Choice { name: &key.text, location: key.location, arguments: Some(value) })
            }
            _ => {
                Err(self
                    .unexpected(what, &format!("{noun} (`Name`, or `Name: {{argument: value}}`)")))
            }
        }
    }

    /// The description of the node, in an error's words.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing".into(),
            Kind::Bool(value) => format!("`{value}`"),
            Kind::Int(value) => format!("`{value}`"),
            Kind::Float(value) => format!("`{value}`"),
            Kind::Text(text) => quoted(text),
            Kind::List(_) => "a list".into(),
            Kind::Map(_) => "a mapping".into(),
        }
    }
}

impl Key {
    /// The error for a key that is not among `known`.
    pub fn unknown(&self, noun: &str, known: &[&str]) -> Diagnostic {
        let message = format!("unknown {noun} {}", quoted(&self.text));
        match nearest(&self.text, known.iter().copied()) {
            Some(near) => Diagnostic::new(self.location, message).suggesting(Some(near)),
            None if known.is_empty() => {
                Diagnostic::new(self.location, format!("{message}: expected no {noun}s"))
            }
            None => Diagnostic::new(
                self.location,
                format!("{message}: expected one of {}", listed(known)),
            ),
        }
    }
}

/// Names in an error, which is one line: not all of very many.
fn listed(names: &[&str]) -> String {
    const MOST: usize = 24;
    match names.split_at_checked(MOST) {
        Some((first, rest)) if !rest.is_empty() => {
            format!("{} and {} more", first.join(", "), rest.len())
        }
        _ => names.join(", "),
    }
}

/// A mapping whose keys are all known.
#[derive(Clone, Debug)]
pub struct Mapping<'n> {
    /// The location of the mapping.
    pub location: Location,
    noun: &'n str,
    entries: &'n [Entry],
}

impl<'n> Mapping<'n> {
    /// The value of `key`, if the file has one.
    pub fn get(&self, key: &str) -> Option<&'n Node> {
        self.entries.iter().find(|entry| entry.key.text == key).map(|entry| &entry.value)
    }

    /// The value of `key`, or an error that says it is missing.
    pub fn need(&self, key: &str) -> Result<&'n Node, Diagnostic> {
        self.get(key)
            .ok_or_else(|| Diagnostic::new(self.location, format!("missing {} `{key}`", self.noun)))
    }

    /// The value of `key` as `reader` reads it, or an error that says it is missing.
    pub fn required<T>(&self, key: &str, reader: &Reader<T>) -> Result<T, Diagnostic> {
        match self.get(key) {
            Some(node) => node.read(&format!("`{key}`"), reader),
            None => Err(Diagnostic::new(
                self.location,
                format!("missing {} `{key}`: expected {}", self.noun, reader.expected),
            )),
        }
    }

    /// The value of `key` as `reader` reads it, if the file has one.
    pub fn optional<T>(&self, key: &str, reader: &Reader<T>) -> Result<Option<T>, Diagnostic> {
        self.get(key).map(|node| node.read(&format!("`{key}`"), reader)).transpose()
    }
}

/// One of several named things, with its arguments: `CrossEntropyLoss`, or
/// `CrossEntropyLoss: {label_smoothing: 0.1}`.
#[derive(Copy, Clone, Debug)]
pub struct Choice<'n> {
    /// The name chosen.
    pub name: &'n str,
    /// The location of the name.
    pub location: Location,
    /// The arguments as written; None for a bare name.
    pub arguments: Option<&'n Node>,
}

impl<'n> Choice<'n> {
    /// The arguments as a mapping all of whose keys are among `known`.
    pub fn arguments(&self, known: &[&str]) -> Result<Mapping<'n>, Diagnostic> {
        match self.arguments {
            Some(node) => Ok(Mapping {
                location: self.location,
                ..node.mapping(self.name, "argument", known)?
            }),
            None => Ok(Mapping { location: self.location, noun: "argument", entries: &[] }),
        }
    }

    /// The key of the argument `name` as written, if the file has one.
    pub fn argument(&self, name: &str) -> Option<&'n Key> {
        match &self.arguments?.kind {
            Kind::Map(entries) => {
                entries.iter().map(|entry| &entry.key).find(|key| key.text == name)
            }
            _ => None,
        }
    }

    /// The error for a name that is not among `known`; `noun` says what they are ("loss").
    pub fn unknown(&self, noun: &str, known: &[&str]) -> Diagnostic {
        Key { location: self.location, text: self.name.to_owned() }.unknown(noun, known)
    }
}
