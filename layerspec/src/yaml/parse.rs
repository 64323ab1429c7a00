//! From text to nodes, without recursion and within bounds.

use super::{scalar, Entry, Key, Kind, Node};
use crate::{Diagnostic, Location};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::borrow::Cow;

/// How deep lists and mappings may lie in each other.
pub const MAX_DEPTH: usize = 64;

/// The most values in one file.
pub const MAX_NODES: usize = 250_000;

/// The tree of one YAML document. Anchors, aliases, tags and further documents are refused: with
/// them a small file could mean a huge one, and nothing here needs them.
///
/// `${...}` may stand unquoted anywhere, also within `{...}` and `[...]`, and is part of the text.
pub fn parse(text: &str) -> Result<Node, Diagnostic> {
    let shielded = shield(text);
    let mut builder = Builder { open: Vec::new(), root: None, nodes: 0 };
    for event in Parser::new_from_str(&shielded) {
        match event {
            Ok((event, span)) => builder.take(event, location_of(&span))?,
            Err(error) => return Err(not_yaml(&error)),
        }
    }
    Ok(builder.root.unwrap_or(Node { location: Location::START, kind: Kind::Null }))
}

fn not_yaml(error: &ScanError) -> Diagnostic {
    let hint = match error.info() {
        // The parser's message for the most frequent mistake: keys below a layer that has no colon.
        "mapping values are not allowed in this context" => {
            "; if this is a key of the line above, that line needs a colon at its end (`- ReLU:`)"
        }
        "recursion limit exceeded" => ": nested far too deep",
        _ => "",
    };
    let location = location(error.marker().line(), error.marker().col());
    Diagnostic::new(location, format!("this is not YAML: {}{hint}", error.info()))
}

/// Private characters that stand for the braces of `${...}` while YAML is parsed, to which they
/// would be a mapping. One for one, so that columns stay right.
const SHIELDS: [(char, char); 2] = [('{', '\u{E000}'), ('}', '\u{E001}')];

fn shield(text: &str) -> Cow<'_, str> {
    if !text.contains("${") {
        return Cow::Borrowed(text);
    }
    let mut shielded = String::with_capacity(text.len() + text.len() / 8);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        shielded.push_str(before);
        shielded.push('$');
        match after.split_once(['}', '{', '\n']) {
            Some((inside, behind)) if after[inside.len()..].starts_with('}') => {
                shielded.push(SHIELDS[0].1);
                shielded.push_str(inside);
                shielded.push(SHIELDS[1].1);
                rest = behind;
            }
            // It is not closed on this line; YAML's own error tells of it best.
            _ => {
                shielded.push('{');
                rest = after;
            }
        }
    }
    shielded.push_str(rest);
    Cow::Owned(shielded)
}

fn unshield(text: &str) -> String {
    SHIELDS.iter().fold(text.to_owned(), |text, (brace, shield)| match text.contains(*shield) {
        true => text.replace(*shield, brace.encode_utf8(&mut [0; 4])),
        false => text,
    })
}

fn location_of(span: &Span) -> Location {
    location(span.start.line(), span.start.col())
}

/// The parser counts columns from 0.
fn location(line: usize, column: usize) -> Location {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Location { line: number(line.max(1)), column: number(column.saturating_add(1)) }
}

/// The tree so far: what is open, outermost first.
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
}

enum Open {
    List { location: Location, items: Vec<Node> },
    Map { location: Location, entries: Vec<Entry>, key: Option<Key> },
}

impl Builder {
    fn take(&mut self, event: Event<'_>, location: Location) -> Result<(), Diagnostic> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) if self.root.is_none() => Ok(()),
            Event::DocumentStart(_) => {
                Err(Diagnostic::new(location, "a second document begins here; expected one"))
            }
            Event::Alias(_) => Err(no_anchors(location)),
            Event::Scalar(text, style, anchor, tag) => {
                plain_node(location, anchor, tag.is_some())?;
                self.scalar(&unshield(&text), style, location)
            }
            Event::SequenceStart(anchor, tag) => {
                plain_node(location, anchor, tag.is_some())?;
                self.begin(Open::List { location, items: Vec::new() }, location)
            }
            Event::MappingStart(anchor, tag) => {
                plain_node(location, anchor, tag.is_some())?;
                self.begin(Open::Map { location, entries: Vec::new(), key: None }, location)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { location, items }) => {
                    self.add(Node { location, kind: Kind::List(items) })
                }
                Some(Open::Map { location, entries, .. }) => {
                    self.add(Node { location, kind: Kind::Map(entries) })
                }
                None => Ok(()), // the parser pairs ends with starts
            },
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        location: Location,
    ) -> Result<(), Diagnostic> {
        if let Some(Open::Map { key: key @ None, .. }) = self.open.last_mut() {
            *key = Some(Key { location, text: text.to_owned() });
            return Ok(());
        }
        let kind = match style {
            ScalarStyle::Plain => scalar::plain(text),
            _ => Kind::Text(text.to_owned()),
        };
        self.add(Node { location, kind })
    }

    fn begin(&mut self, open: Open, location: Location) -> Result<(), Diagnostic> {
        if let Some(Open::Map { key: None, .. }) = self.open.last() {
            return Err(Diagnostic::new(
                location,
                "expected a word as key, found a list or a mapping",
            ));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(Diagnostic::new(location, format!("nested more than {MAX_DEPTH} deep")));
        }
        self.open.push(open);
        Ok(())
    }

    fn add(&mut self, node: Node) -> Result<(), Diagnostic> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(Diagnostic::new(
                node.location,
                format!("more than {MAX_NODES} values in one file"),
            ));
        }
        match self.open.last_mut() {
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => {
                if let Some(key) = key.take() {
                    entries.push(Entry { key, value: node });
                }
            }
            None => self.root = Some(node),
        }
        Ok(())
    }
}

fn plain_node(location: Location, anchor: usize, tagged: bool) -> Result<(), Diagnostic> {
    if tagged {
        return Err(Diagnostic::new(location, "tags (`!...`) are not supported; leave it out"));
    }
    if anchor != 0 {
        return Err(no_anchors(location));
    }
    Ok(())
}

fn no_anchors(location: Location) -> Diagnostic {
    Diagnostic::new(
        location,
        "anchors and aliases (`&name`, `*name`) are not supported; write it out",
    )
}
