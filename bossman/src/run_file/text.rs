//! The keys of text in a run file: files, tokenizer, lengths.

use super::string_map::string_map;
use crate::data::{Text, TextPairs, Tokenizer};
use crate::{Search, TranslationSettings};
use layerspec::yaml::{Choice, Kind, Mapping, Node, Reader, COUNT, NON_NEGATIVE, SIZE, TEXT};
use layerspec::{nearest, Diagnostic};
use std::path::Path;

/// One token and its begin or end token need two positions.
const LENGTH: Reader<u64> = Reader::new("a whole number, 2 or more", |node| match node.kind {
    Kind::Int(number) => u64::try_from(number).ok().filter(|number| *number > 1),
    _ => None,
});

pub(super) fn text(choice: &Choice<'_>, folder: &Path) -> Result<Text, Diagnostic> {
    let arguments = choice.arguments(&["path", "tokenizer", "sequence_length", "eos"])?;
    let path = |node: &Node| Ok(folder.join(node.read("`path`", &TEXT)?));
    let paths = one_or_more(arguments.need("path")?).iter().map(path);
    Ok(Text {
        paths: paths.collect::<Result<_, Diagnostic>>()?,
        tokenizer: tokenizer(&arguments, "tokenizer", folder)?.unwrap_or(Tokenizer::Bytes),
        sequence_length: arguments.required("sequence_length", &SIZE)?,
        eos: eos(&arguments)?,
    })
}

/// The items of a list, or what is there in place of a list.
fn one_or_more(node: &Node) -> &[Node] {
    match &node.kind {
        Kind::List(items) if !items.is_empty() => items,
        _ => std::slice::from_ref(node),
    }
}

/// The tokens that end a text.
fn eos(arguments: &Mapping<'_>) -> Result<Vec<String>, Diagnostic> {
    let nodes = arguments.get("eos").map(one_or_more).unwrap_or_default();
    nodes.iter().map(|node| node.read("`eos`", &TEXT)).collect()
}

/// How text becomes tokens without text to train on: a tokenizer alone, or with some keys of
/// [`text`].
pub(super) fn without_files(run: &Mapping<'_>, folder: &Path) -> Result<Option<Text>, Diagnostic> {
    let Some(node) = run.get("tokenizer") else { return Ok(None) };
    let paths = Vec::new();
    if !matches!(node.kind, Kind::Map(_)) {
        let tokenizer = tokenizer(run, "tokenizer", folder)?.unwrap_or(Tokenizer::Bytes);
        return Ok(Some(Text { paths, tokenizer, sequence_length: u64::MAX, eos: Vec::new() }));
    }
    let keys = node.mapping("`tokenizer`", "key", &["path", "sequence_length", "eos"])?;
    keys.need("path")?;
    Ok(Some(Text {
        paths,
        tokenizer: tokenizer(&keys, "path", folder)?.unwrap_or(Tokenizer::Bytes),
        sequence_length: keys.optional("sequence_length", &SIZE)?.unwrap_or(u64::MAX),
        eos: eos(&keys)?,
    }))
}

pub(super) fn pairs(choice: &Choice<'_>, folder: &Path) -> Result<TextPairs, Diagnostic> {
    let arguments = choice.arguments(&[
        "path",
        "keys",
        "tokenizer",
        "target_tokenizer",
        "bos",
        "eos",
        "pad",
        "length",
        "max_length",
        "inputs",
    ])?;
    let mark = |key: &str| {
        Ok::<_, Diagnostic>(arguments.optional(key, &TEXT)?.unwrap_or_else(|| format!("<{key}>")))
    };
    let (fixed, most) =
        (arguments.optional("length", &LENGTH)?, arguments.optional("max_length", &LENGTH)?);
    if let (Some(_), Some(node)) = (fixed, arguments.get("max_length")) {
        return Err(Diagnostic::new(node.location, "give `length` or `max_length`, not both"));
    }
    let inputs = arguments.get("inputs").map(|node| {
        // Only these names mean something.
        node.mapping("`inputs`", "input", &TextPairs::ROLES)?;
        string_map(node, "`inputs`")
    });
    Ok(TextPairs {
        path: folder.join(arguments.required("path", &TEXT)?),
        keys: keys(&arguments)?,
        tokenizer: tokenizer(&arguments, "tokenizer", folder)?.unwrap_or(Tokenizer::Bytes),
        target_tokenizer: tokenizer(&arguments, "target_tokenizer", folder)?,
        special_tokens: [mark("bos")?, mark("eos")?, mark("pad")?],
        max_length: fixed.or(most),
        fixed: fixed.is_some(),
        inputs: inputs.transpose()?.unwrap_or_default(),
    })
}

/// Each is a row of a batch.
const BEAMS: Reader<u32> = Reader::new("a whole number from 1 to 256", |node| match node.kind {
    Kind::Int(number) => {
        u32::try_from(number).ok().filter(|beams| (1..=Search::MAX_BEAMS).contains(beams))
    }
    _ => None,
});

/// The pairs to translate after each epoch.
pub(super) fn translate(node: &Node) -> Result<TranslationSettings, Diagnostic> {
    let keys = ["beams", "length_penalty", "max_length", "pairs", "samples"];
    let arguments = node.mapping("`translate`", "key", &keys)?;
    let usual = Search::default();
    let search = Search {
        beams: arguments.optional("beams", &BEAMS)?.unwrap_or(1),
        length_penalty: arguments
            .optional("length_penalty", &NON_NEGATIVE)?
            .unwrap_or(usual.length_penalty),
        max_length: arguments.optional("max_length", &SIZE)?.unwrap_or(usual.max_length),
    };
    let pairs = arguments.optional("pairs", &SIZE)?.unwrap_or(u64::MAX);
    Ok(TranslationSettings {
        search,
        pairs,
        samples: arguments.optional("samples", &COUNT)?.unwrap_or(0),
    })
}

fn keys(arguments: &Mapping<'_>) -> Result<Option<[String; 2]>, Diagnostic> {
    let Some(node) = arguments.get("keys") else { return Ok(None) };
    match node.list("`keys`", "two keys")? {
        [source, target] => Ok(Some([source.read("a key", &TEXT)?, target.read("a key", &TEXT)?])),
        _ => Err(node.unexpected("`keys`", "two keys")),
    }
}

/// The name of the tokenizer without a file.
const BYTES: &str = "bytes";

pub(super) fn tokenizer(
    arguments: &Mapping<'_>,
    key: &str,
    folder: &Path,
) -> Result<Option<Tokenizer>, Diagnostic> {
    let Some(node) = arguments.get(key) else { return Ok(None) };
    let name = node.read(&format!("`{key}`"), &TEXT)?;
    if name == BYTES {
        return Ok(Some(Tokenizer::Bytes));
    }
    let path = folder.join(&name);
    // A file of that name, also one that cannot be read, is what the user means.
    let is_absent = matches!(path.try_exists(), Ok(false));
    match nearest(&name, [BYTES]) {
        Some(near) if is_absent => {
            let message = format!("`{key}`: there is no file `{name}`");
            Err(Diagnostic::new(node.location, message).suggesting(Some(near)))
        }
        _ => Ok(Some(Tokenizer::File(path))),
    }
}
