//! Entries of a `layers:` list: a layer, or a block of further entries.

use super::name::{check_name, is_name, layer_name, name, names, Name};
use crate::layers::{Add, Concat, LayerKind, Mul};
use crate::vars::Vars;
use crate::yaml::{
    Choice, Entry, Key, Kind, Mapping, Node, Reader, COUNT, FLAG, INTEGER, RECOMPUTE, TEXT,
};
use crate::{Diagnostic, Location, Recompute};

/// One entry of a list of layers.
#[derive(Debug)]
pub(crate) enum Item {
    Layer(Box<LayerEntry>),
    Block(Block),
}

/// A layer as written.
#[derive(Clone, Debug)]
pub(crate) struct LayerEntry {
    /// None: its position is its name.
    pub(crate) name: Option<Name>,
    pub(crate) kind: LayerKind,
    pub(crate) location: Location,
    pub(crate) input: Option<Name>,
    pub(crate) in_variables: Vec<Name>,
    pub(crate) out_variables: Vec<Name>,
    pub(crate) merge: Option<Merge>,
    pub(crate) share: Option<Name>,
    pub(crate) freeze: bool,
    pub(crate) recompute: Option<Recompute>,
}

/// `merge:`, the layer that joins a layer's `in_variables` to its input.
#[derive(Clone, Debug)]
pub(crate) struct Merge {
    pub(crate) kind: LayerKind,
    pub(crate) location: Location,
}

/// Several entries under one name, perhaps repeated.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) name: Option<Name>,
    /// The location of `repeat`, or of the block.
    pub(crate) location: Location,
    /// None: once, and without a number in the names.
    pub(crate) repeat: Option<u64>,
    pub(crate) items: Vec<Item>,
    pub(crate) freeze: bool,
    pub(crate) recompute: Option<Recompute>,
}

const LAYER_KEYS: [&str; 9] = [
    "name",
    "input",
    "in_variables",
    "out_variables",
    "merge",
    "dim",
    "share",
    "freeze",
    "recompute",
];
const BLOCK_KEYS: [&str; 5] = ["name", "repeat", "layers", "freeze", "recompute"];

/// Reads a list of layers; `prefix` is what their full names begin with.
pub(super) fn read_list(node: &Node, prefix: &str, vars: &Vars) -> Result<Vec<Item>, Diagnostic> {
    let items = node.list("`layers`", "a list of layers, each begun with `- `")?;
    if items.is_empty() {
        return Err(Diagnostic::new(node.location, "`layers`: expected at least one layer"));
    }
    let item = |(position, item)| read_item(item, position, prefix, vars);
    items.iter().enumerate().map(item).collect()
}

fn read_item(node: &Node, position: usize, prefix: &str, vars: &Vars) -> Result<Item, Diagnostic> {
    let path = format!("{prefix}{}", label(node).unwrap_or_else(|| position.to_string()));
    match &node.kind {
        Kind::Map(entries) if entries.iter().any(|entry| is_block_key(&entry.key)) => {
            read_block(node, &path, vars)
                .map(Item::Block)
                .map_err(|error| error.in_layer(&path, None))
        }
        _ => read_layer(node, vars)
            .map(|layer| Item::Layer(Box::new(layer)))
            .map_err(|error| error.in_layer(&path, known_kind(node))),
    }
}

fn is_block_key(key: &Key) -> bool {
    key.text == "layers" || key.text == "repeat"
}

/// The name that an entry gives itself, for errors that come before it is checked.
fn label(node: &Node) -> Option<String> {
    let Kind::Map(entries) = &node.kind else { return None };
    let name = &entries.iter().find(|entry| entry.key.text == "name")?.value;
    (TEXT.read)(name).filter(|name| is_name(name))
}

/// The layer's kind, for errors, if the entry is clear about it.
fn known_kind(node: &Node) -> Option<&str> {
    let (choice, _) = split(node).ok()?;
    LayerKind::NAMES.contains(&choice.name).then_some(choice.name)
}

fn read_block(node: &Node, path: &str, vars: &Vars) -> Result<Block, Diagnostic> {
    let block = node.mapping("a block", "key", &BLOCK_KEYS)?;
    let repeat = block
        .get("repeat")
        .map(|node| vars.substitute(node)?.read("`repeat`", &COUNT))
        .transpose()?;
    let prefix = if repeat.is_some() { format!("{path}.0.") } else { format!("{path}.") };
    Ok(Block {
        name: block
            .get("name")
            .map(|node| layer_name(&vars.substitute(node)?, "`name`"))
            .transpose()?,
        location: block.get("repeat").unwrap_or(node).location,
        repeat,
        items: read_list(block.need("layers")?, &prefix, vars)?,
        freeze: block.optional("freeze", &FLAG)?.unwrap_or(false),
        recompute: block.optional("recompute", &RECOMPUTE)?,
    })
}

/// Tells the key that names the layer's kind from the keys beside it.
fn split(node: &Node) -> Result<(Choice<'_>, Node), Diagnostic> {
    let Kind::Map(entries) = &node.kind else {
        let choice = node.choice("this entry", "a layer")?;
        return Ok((choice, Node { location: node.location, kind: Kind::Null }));
    };
    let is_sibling = |entry: &&Entry| LAYER_KEYS.contains(&entry.key.text.as_str());
    let (siblings, others): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(is_sibling);
    let is_kind = |entry: &&&Entry| LayerKind::NAMES.contains(&entry.key.text.as_str());
    let Some(kind) = others.iter().find(is_kind).or(others.first()) else {
        return Err(node.unexpected("this entry", "the name of a layer among the keys"));
    };
    if let Some(stray) = others.iter().find(|other| other.key != kind.key) {
        return Err(stray_key(&stray.key, &kind.key.text));
    }
    let choice =
        Choice { name: &kind.key.text, location: kind.key.location, arguments: Some(&kind.value) };
    let siblings = siblings.into_iter().cloned().collect();
    Ok((choice, Node { location: node.location, kind: Kind::Map(siblings) }))
}

fn stray_key(key: &Key, kind: &str) -> Diagnostic {
    let text = &key.text;
    if LayerKind::NAMES.contains(&text.as_str()) {
        let message = format!("a second layer `{text}` in one entry; begin it with `- `");
        return Diagnostic::new(key.location, message);
    }
    if LayerKind::argument_names(kind).contains(&text.as_str()) {
        let message = format!("`{text}` is an argument of {kind}: indent it below `{kind}:`");
        return Diagnostic::new(key.location, message);
    }
    key.unknown("key", &LAYER_KEYS)
}

fn read_layer(node: &Node, vars: &Vars) -> Result<LayerEntry, Diagnostic> {
    let node = vars.substitute(node)?;
    let (choice, siblings) = split(&node)?;
    let keys = siblings.mapping("a layer", "key", &LAYER_KEYS)?;
    let list = |key| keys.get(key).map(|node| names(node, &format!("`{key}`"))).transpose();
    let entry = LayerEntry {
        name: keys.get("name").map(|node| layer_name(node, "`name`")).transpose()?,
        kind: LayerKind::read(&choice)?,
        location: choice.location,
        input: keys.get("input").map(|node| name(node, "`input`")).transpose()?,
        in_variables: list("in_variables")?.unwrap_or_default(),
        out_variables: list("out_variables")?.unwrap_or_default(),
        merge: read_merge(&keys)?,
        share: keys.get("share").map(|node| layer_name(node, "`share`")).transpose()?,
        freeze: keys.optional("freeze", &FLAG)?.unwrap_or(false),
        recompute: keys.optional("recompute", &RECOMPUTE)?,
    };
    entry.out_variables.iter().try_for_each(check_name)?;
    Ok(entry)
}

const MERGE: Reader<&'static str> =
    Reader::keyword("`add`, `mul` or `concat`", &["add", "mul", "concat"], |node| {
        match node.as_text()? {
            "add" => Some("add"),
            "mul" => Some("mul"),
            "concat" => Some("concat"),
            _ => None,
        }
    });

fn read_merge(keys: &Mapping<'_>) -> Result<Option<Merge>, Diagnostic> {
    let how = keys.optional("merge", &MERGE)?;
    let dim = keys.get("dim");
    let kind = match (how, dim) {
        (Some("add"), None) => LayerKind::Add(Add { number: None }),
        (Some("mul"), None) => LayerKind::Mul(Mul {}),
        (Some("concat"), Some(dim)) => {
            LayerKind::Concat(Concat { dim: dim.read("`dim`", &INTEGER)? })
        }
        (Some("concat"), None) => {
            return Err(Diagnostic::new(
                keys.location,
                "`merge: concat` needs the dimension to join along: `dim: 1`",
            ))
        }
        (_, Some(dim)) => {
            return Err(Diagnostic::new(
                dim.location,
                "`dim` means something beside `merge: concat` only",
            ))
        }
        (_, None) => return Ok(None),
    };
    Ok(keys.get("merge").map(|node| Merge { kind, location: node.location }))
}
