//! The key `data` of a run file: files, their formats, and the normalization of inputs.

use super::file_reader::{FileReader, FILE_READER};
use super::string_map::string_map;
use super::{class_list, columns, text};
use crate::data::{Normalize, Source, Table};
use layerspec::yaml::{Choice, Kind, Mapping, Node, Reader, TEXT};
use layerspec::Diagnostic;
use std::path::{Path, PathBuf};

/// Samples for each purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// The samples to train on.
    pub train: Source,
    /// The samples for validation after each epoch.
    pub validation: Option<Validation>,
    /// The samples for the test at the end.
    pub test: Option<Source>,
    /// The normalization of an input.
    pub normalize: Option<Normalize>,
    /// Set if workers read the samples from their own files: the folder here that corresponds to
    /// theirs.
    pub on_workers: Option<PathBuf>,
}

impl Data {
    /// All sources of samples.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        let validation = match &self.validation {
            Some(Validation::Source(source)) => Some(source.as_ref()),
            _ => None,
        };
        [Some(&self.train), validation, self.test.as_ref()].into_iter().flatten()
    }
}

/// The samples for validation after each epoch.
#[derive(Clone, Debug, PartialEq)]
pub enum Validation {
    /// Samples of their own.
    Source(Box<Source>),
    /// A share of the samples to train on. It is then not trained on.
    Split(f64),
}

/// Neither none nor all.
const SHARE: Reader<f64> =
    Reader::new("a number between 0 and 1, as 0.1", |node| match node.kind {
        Kind::Float(share) if share > 0.0 && share < 1.0 => Some(share),
        _ => None,
    });

const SOURCES: [&str; 9] =
    ["idx", "images", "jsonl", "npy", "npz", "pairs", "parquet", "safetensors", "text"];

/// A number that can be divided by.
const DIVISOR: Reader<f64> = Reader::new("a number that is not 0", |node| match node.kind {
    Kind::Int(number) if number != 0 => Some(number as f64),
    Kind::Float(number) if number.is_finite() && number != 0.0 => Some(number),
    _ => None,
});

pub(super) fn data(node: &Node, folder: &Path) -> Result<Data, Diagnostic> {
    let keys = ["train", "validation", "test", "columns", "normalize", "on", "root"];
    let data = node.mapping("`data`", "key", &keys)?;
    let spec = columns::columns(&data)?;
    let table = |of: Source, key| columns::by_columns(of, spec.as_ref(), data.get(key));
    let validation = data.get("validation").map(|node| validation(node, folder)).transpose()?;
    let normalized = data.get("normalize").filter(|_| spec.is_none());
    Ok(Data {
        train: table(source(data.need("train")?, "`train`", folder)?, "train")?,
        validation: match validation {
            Some(Validation::Source(of)) => {
                Some(Validation::Source(Box::new(table(*of, "validation")?)))
            }
            other => other,
        },
        test: match data.get("test") {
            Some(node) => Some(table(source(node, "`test`", folder)?, "test")?),
            None => None,
        },
        normalize: normalized.map(normalize).transpose()?,
        on_workers: on_workers(&data, folder)?,
    })
}

/// The folder here that corresponds to the folder of workers: `root`, or that of the run file.
fn on_workers(data: &Mapping<'_>, folder: &Path) -> Result<Option<PathBuf>, Diagnostic> {
    let root = data.optional("root", &TEXT)?;
    match (data.optional("on", &FILE_READER)?, root) {
        (Some(FileReader::Workers), None) => Ok(Some(folder.to_path_buf())),
        (Some(FileReader::Workers), Some(root)) => Ok(Some(folder.join(root))),
        (_, None) => Ok(None),
        (_, Some(_)) => Err(Diagnostic::new(
            data.need("root")?.location,
            "`root` is for data that workers read: add `on: workers`",
        )),
    }
}

fn validation(node: &Node, folder: &Path) -> Result<Validation, Diagnostic> {
    match &node.kind {
        Kind::Map(entries) if entries.iter().any(|entry| entry.key.text == "split") => {
            let split = node.mapping("`validation`", "key", &["split"])?;
            Ok(Validation::Split(split.required("split", &SHARE)?))
        }
        _ => Ok(Validation::Source(Box::new(source(node, "`validation`", folder)?))),
    }
}

/// A path, or a format with its files.
fn source(node: &Node, what: &str, folder: &Path) -> Result<Source, Diagnostic> {
    if let Some(path) = (TEXT.read)(node) {
        return Ok(Source::File(folder.join(path)));
    }
    let choice = node.choice(what, "a path or a format")?;
    let path = |arguments: &Mapping<'_>, key: &str| {
        Ok::<_, Diagnostic>(folder.join(arguments.required(key, &TEXT)?))
    };
    match choice.name {
        "idx" => {
            let arguments = choice.arguments(&["images", "labels"])?;
            Ok(Source::Idx {
                images: path(&arguments, "images")?,
                labels: path(&arguments, "labels")?,
            })
        }
        "npy" => {
            let arguments = choice.arguments(&["inputs", "target"])?;
            let inputs = string_map(arguments.need("inputs")?, "`inputs`")?;
            let inputs = inputs.into_iter().map(|(name, file)| (name, folder.join(file))).collect();
            Ok(Source::Npy { inputs, target: path(&arguments, "target")? })
        }
        "npz" => Ok(Source::Npz(table(&choice, folder)?)),
        "safetensors" => Ok(Source::Safetensors(table(&choice, folder)?)),
        "jsonl" => Ok(Source::Jsonl(table(&choice, folder)?)),
        "parquet" => Ok(Source::Parquet(table(&choice, folder)?)),
        "images" => {
            let arguments = choice.arguments(&["folder", "classes"])?;
            let classes = arguments.get("classes").map(class_list::class_list).transpose()?;
            Ok(Source::Images { folder: path(&arguments, "folder")?, classes })
        }
        "text" => Ok(Source::Text(text::text(&choice, folder)?)),
        "pairs" => Ok(Source::Pairs(text::pairs(&choice, folder)?)),
        _ => Err(choice.unknown("format", &SOURCES)),
    }
}

/// A file with named columns: `{path: P, inputs: {x: column}, target: column}`.
fn table(choice: &Choice<'_>, folder: &Path) -> Result<Table, Diagnostic> {
    let arguments = choice.arguments(&["path", "inputs", "target"])?;
    let path: PathBuf = folder.join(arguments.required("path", &TEXT)?);
    let inputs = arguments
        .get("inputs")
        .map(|node| string_map(node, "`inputs`"))
        .transpose()?
        .unwrap_or_default();
    let target = arguments.optional("target", &TEXT)?;
    let alike = Table::with_default_names(path);
    Ok(Table { inputs, target: target.unwrap_or(alike.target), ..alike })
}

fn normalize(node: &Node) -> Result<Normalize, Diagnostic> {
    let arguments = node.mapping("`normalize`", "key", &["input", "divide", "mean", "std"])?;
    Ok(Normalize {
        input: arguments.optional("input", &TEXT)?,
        divide: arguments.optional("divide", &DIVISOR)?.unwrap_or(1.0),
        mean: numbers(&arguments, "mean", 0.0, &layerspec::yaml::NUMBER)?,
        std: numbers(&arguments, "std", 1.0, &DIVISOR)?,
    })
}

/// One number, or a list with one for each channel.
fn numbers(
    arguments: &Mapping<'_>,
    key: &str,
    default: f64,
    reader: &Reader<f64>,
) -> Result<Vec<f64>, Diagnostic> {
    let what = format!("`{key}`");
    match arguments.get(key) {
        None => Ok(vec![default]),
        Some(Node { kind: Kind::List(items), .. }) if !items.is_empty() => {
            items.iter().map(|item| item.read(&what, reader)).collect()
        }
        Some(node) => Ok(vec![node.read(&what, reader)?]),
    }
}
