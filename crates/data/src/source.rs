//! The sources of samples.

use super::column::{Column, Columns};
use super::endings::{self, is_csv};
use super::expected_tensor::ExpectedTensor;
use super::named_columns::ColumnsSource;
use super::table::Table;
use super::{
    csv, idx, images, jsonl, npy, npz, pairs, parquet, picture_files, safetensors, text, Text,
    TextPairs, Tokenizer,
};
use crate::DataError;
use layerspec::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A data set's files and their format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Source {
    /// A file whose ending names the format.
    File(PathBuf),
    /// idx files of inputs and of classes.
    Idx {
        /// The model's only input.
        images: PathBuf,
        /// The target.
        labels: PathBuf,
    },
    /// `.npy` files: one for each input and one for the target.
    Npy {
        /// The files by the names of the model's inputs.
        inputs: BTreeMap<String, PathBuf>,
        /// The target.
        target: PathBuf,
    },
    /// Arrays in one `.npz`.
    Npz(Table),
    /// Tensors in one `.safetensors`.
    Safetensors(Table),
    /// Lines of JSON.
    Jsonl(Table),
    /// Columns of a Parquet file.
    Parquet(Table),
    /// Numbers and texts of a CSV or Parquet file, by the names of columns.
    Columns(Box<ColumnsSource>),
    /// Pictures: PNG and JPEG files in a folder for each class.
    Images {
        /// The folder that holds those folders.
        folder: PathBuf,
        /// The names of the classes in their order. `None` takes those of the folders, sorted.
        #[serde(default)]
        classes: Option<Vec<String>>,
    },
    /// Text, to predict the next token.
    Text(Text),
    /// Pairs of texts.
    Pairs(TextPairs),
}

const ENDINGS: &str =
    ".csv, .csv.gz, .jsonl, .jsonl.gz, .npz, .parquet or .safetensors, or a folder of pictures";

/// The endings of paths that name no folder of pictures.
const FILE_ENDINGS: [&str; 9] =
    [".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".npz", ".parquet", ".safetensors", ".txt", ".tsv"];

/// The endings that tell the format of a file.
const KNOWN_ENDINGS: [&str; 12] = [
    ".csv",
    ".csv.gz",
    ".jsonl",
    ".jsonl.gz",
    ".npz",
    ".parquet",
    ".safetensors",
    ".png",
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
];

impl Source {
    /// Returns the path that errors name.
    pub fn path(&self) -> &Path {
        match self {
            Source::File(path)
            | Source::Idx { images: path, .. }
            | Source::Npy { target: path, .. } => path,
            Source::Npz(table)
            | Source::Safetensors(table)
            | Source::Jsonl(table)
            | Source::Parquet(table) => &table.path,
            Source::Columns(columns) => &columns.path,
            Source::Images { folder, .. } => folder,
            Source::Text(text) => text.paths.first().map_or(Path::new("text"), PathBuf::as_path),
            Source::Pairs(pairs) => &pairs.path,
        }
    }

    /// The same source with this file in place of its own, to be read without targets. `None` if
    /// the file has another format, by its name, or the source needs several.
    pub fn of_file(&self, file: &Path) -> Option<Self> {
        let ends = |endings: &[&str]| endings::ends(file, endings);
        let table = |of: &Table| Table { path: file.to_path_buf(), ..of.clone() };
        let endings: &[&str] = match self {
            Source::Columns(of) if ColumnsSource::is_table(file) => {
                let path = file.to_path_buf();
                return Some(Source::Columns(Box::new(ColumnsSource {
                    path,
                    ..of.as_ref().clone()
                })));
            }
            Source::Text(of) if ends(&[".txt"]) => {
                let paths = vec![file.to_path_buf()];
                return Some(Source::Text(Text { paths, ..of.clone() }));
            }
            Source::Idx { .. } => {
                // Its name need not tell.
                let is_other = file.is_dir() || ends(&KNOWN_ENDINGS);
                let images = file.to_path_buf();
                return (!is_other).then(|| Source::Idx { labels: images.clone(), images });
            }
            Source::Jsonl(_) => &[".jsonl", ".jsonl.gz"],
            Source::Parquet(_) => &[".parquet"],
            Source::Npz(_) => &[".npz"],
            Source::Safetensors(_) => &[".safetensors"],
            Source::Npy { inputs, .. } if inputs.len() == 1 => &[".npy"],
            _ => return None,
        };
        if !ends(endings) {
            return None;
        }
        Some(match self {
            Source::Jsonl(of) => Source::Jsonl(table(of)),
            Source::Parquet(of) => Source::Parquet(table(of)),
            Source::Npz(of) => Source::Npz(table(of)),
            Source::Safetensors(of) => Source::Safetensors(table(of)),
            Source::Npy { inputs, .. } => {
                let inputs = inputs.keys().map(|name| (name.clone(), file.to_path_buf()));
                Source::Npy { inputs: inputs.collect(), target: file.to_path_buf() }
            }
            _ => return None,
        })
    }

    /// Returns the same source with each path replaced.
    ///
    /// # Errors
    /// Those of `path`.
    pub fn with_paths(
        &self,
        path: &dyn Fn(&Path) -> Result<PathBuf, DataError>,
    ) -> Result<Self, DataError> {
        let table =
            |table: &Table| Ok::<_, DataError>(Table { path: path(&table.path)?, ..table.clone() });
        let tokenizer = |tokenizer: &Tokenizer| {
            Ok::<_, DataError>(match tokenizer {
                Tokenizer::Bytes => Tokenizer::Bytes,
                Tokenizer::File(file) => Tokenizer::File(path(file)?),
            })
        };
        Ok(match self {
            Source::File(file) => Source::File(path(file)?),
            Source::Idx { images, labels } => {
                Source::Idx { images: path(images)?, labels: path(labels)? }
            }
            Source::Npy { inputs, target } => {
                let inputs = inputs.iter().map(|(name, file)| Ok((name.clone(), path(file)?)));
                Source::Npy {
                    inputs: inputs.collect::<Result<_, DataError>>()?,
                    target: path(target)?,
                }
            }
            Source::Npz(of) => Source::Npz(table(of)?),
            Source::Safetensors(of) => Source::Safetensors(table(of)?),
            Source::Jsonl(of) => Source::Jsonl(table(of)?),
            Source::Parquet(of) => Source::Parquet(table(of)?),
            Source::Columns(of) => Source::Columns(Box::new(ColumnsSource {
                path: path(&of.path)?,
                ..of.as_ref().clone()
            })),
            Source::Images { folder, classes } => {
                Source::Images { folder: path(folder)?, classes: classes.clone() }
            }
            Source::Text(text) => Source::Text(Text {
                paths: text.paths.iter().map(|file| path(file)).collect::<Result<_, _>>()?,
                tokenizer: tokenizer(&text.tokenizer)?,
                ..text.clone()
            }),
            Source::Pairs(pairs) => Source::Pairs(TextPairs {
                path: path(&pairs.path)?,
                tokenizer: tokenizer(&pairs.tokenizer)?,
                target_tokenizer: pairs.target_tokenizer.as_ref().map(tokenizer).transpose()?,
                ..pairs.clone()
            }),
        })
    }

    /// The names of the classes in their order, if the data has names for them: those of the
    /// folders of pictures, or the texts of a target that were learned from a table.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn class_names(&self) -> Result<Option<Vec<String>>, DataError> {
        match self {
            Source::Columns(columns) => Ok(columns.class_names()),
            Source::Images { classes: Some(names), .. } => Ok(Some(names.clone())),
            _ => self.picture_folder().map(picture_files::class_names).transpose(),
        }
    }

    /// The names of the classes of pictures, if these are pictures. Unless they are known, they are
    /// learned from the folders, and each must hold a picture.
    ///
    /// # Errors
    /// A folder cannot be read, holds no picture, or holds one that would be left out.
    pub fn learn_classes(&self) -> Result<Option<Vec<String>>, DataError> {
        match (self, self.picture_folder()) {
            (Source::Images { classes: Some(names), .. }, _) => Ok(Some(names.clone())),
            (_, Some(folder)) => {
                picture_files::by_class(folder, None)?;
                picture_files::class_names(folder).map(Some)
            }
            (_, None) => Ok(None),
        }
    }

    /// The same pictures, whose classes have these names in this order. Others stay as they are.
    #[must_use]
    pub fn with_classes(self, names: &[String]) -> Self {
        match self.picture_folder() {
            Some(folder) => {
                Source::Images { folder: folder.to_path_buf(), classes: Some(names.to_vec()) }
            }
            None => self,
        }
    }

    /// The folder of pictures, if these are pictures.
    fn picture_folder(&self) -> Option<&Path> {
        match self {
            Source::Images { folder, .. } => Some(folder),
            // The ending of a path counts before what is there.
            Source::File(path) if path.is_dir() && !endings::ends(path, &FILE_ENDINGS) => {
                Some(path)
            }
            _ => None,
        }
    }

    /// Lists every file that is read, in an order that depends on the names alone.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>, DataError> {
        let tokenizer = |tokenizer: &Tokenizer| match tokenizer {
            Tokenizer::Bytes => None,
            Tokenizer::File(file) => Some(file.clone()),
        };
        Ok(match self {
            Source::Columns(columns) => vec![columns.path.clone()],
            Source::Images { folder, .. } => picture_files::unlabelled(folder)?,
            Source::File(file) if file.is_dir() => picture_files::unlabelled(file)?,
            Source::File(file) => vec![file.clone()],
            Source::Idx { images, labels } => vec![images.clone(), labels.clone()],
            Source::Npy { inputs, target } => inputs.values().chain([target]).cloned().collect(),
            Source::Npz(table)
            | Source::Safetensors(table)
            | Source::Jsonl(table)
            | Source::Parquet(table) => {
                vec![table.path.clone()]
            }
            Source::Text(text) => {
                text.paths.iter().cloned().chain(tokenizer(&text.tokenizer)).collect()
            }
            Source::Pairs(pairs) => {
                let tokenizers =
                    [Some(&pairs.tokenizer), pairs.target_tokenizer.as_ref()].into_iter().flatten();
                [pairs.path.clone()].into_iter().chain(tokenizers.filter_map(tokenizer)).collect()
            }
        })
    }

    pub(super) fn open(
        &self,
        inputs: &[ExpectedTensor],
        target: Option<&ExpectedTensor>,
    ) -> Result<Columns, DataError> {
        match self {
            Source::File(path) => open_file(path, inputs, target),
            Source::Idx { images, labels } => {
                only_input("idx files hold", images, inputs)?;
                let inputs = vec![Column::Array(idx::open(images)?)];
                let target = target.map(|_| idx::open(labels)).transpose()?.map(Column::Array);
                Ok(Columns { inputs, target })
            }
            Source::Npy { inputs: files, target: labels } => {
                let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
                let usage = |problem: String| DataError::Usage(format!("data, npy: {problem}"));
                if let Some(unknown) = files.keys().find(|name| !names.contains(&name.as_str())) {
                    let problem = format!(
                        "the model has no input `{unknown}`; its inputs are {}",
                        names.join(", ")
                    );
                    return Err(usage(problem));
                }
                let file = |name: &&str| {
                    files.get(*name).ok_or_else(|| usage(format!("no file for the input `{name}`")))
                };
                let open = |name: &&str| Ok(Column::Array(npy::open(file(name)?)?));
                let inputs = names.iter().map(open).collect::<Result<_, DataError>>()?;
                let target = target.map(|_| npy::open(labels)).transpose()?.map(Column::Array);
                Ok(Columns { inputs, target })
            }
            Source::Npz(table) => by_name(table, inputs, target, |table, _| npz::open(table)),
            Source::Safetensors(table) => {
                by_name(table, inputs, target, |table, _| safetensors::open(table))
            }
            Source::Jsonl(table) => by_name(table, inputs, target, jsonl::open),
            Source::Parquet(table) => by_name(table, inputs, target, parquet::open),
            Source::Columns(columns) => columns.open(inputs, target),
            Source::Images { folder, classes } => {
                only_input("pictures are", folder, inputs)?;
                if target.is_none() {
                    let images = images::open_unlabelled(folder, &inputs[0])?;
                    return Ok(Columns { inputs: vec![Column::Images(images)], target: None });
                }
                let (images, labels) = images::open(folder, classes.as_deref(), &inputs[0])?;
                Ok(Columns {
                    inputs: vec![Column::Images(images)],
                    target: Some(Column::Array(labels)),
                })
            }
            Source::Text(text) => {
                only_input("text is", self.path(), inputs)?;
                text::open(text, &inputs[0])
            }
            Source::Pairs(pairs) => pairs::open(pairs, inputs),
        }
    }
}

fn open_file(
    path: &Path,
    inputs: &[ExpectedTensor],
    target: Option<&ExpectedTensor>,
) -> Result<Columns, DataError> {
    let ends = |endings: &[&str]| endings::ends(path, endings);
    let table = || Table::with_default_names(path.to_path_buf());
    let source = match () {
        () if is_csv(path) => {
            only_input("csv holds", path, inputs)?;
            return csv::open(path, &inputs[0], target);
        }
        () if ends(&[".safetensors"]) => Source::Safetensors(table()),
        () if ends(&[".npz"]) => Source::Npz(table()),
        () if ends(&[".jsonl", ".jsonl.gz"]) => Source::Jsonl(table()),
        () if ends(&[".parquet"]) => Source::Parquet(table()),
        () if !path.exists() => {
            return Err(DataError::file(path, "there is no such file or folder"));
        }
        () if ends(&[".npy"]) => {
            let problem = "an .npy file holds one tensor: name those of inputs and target, as \
                           {npy: {inputs: {x: PATH}, target: PATH}}";
            return Err(DataError::file(path, problem));
        }
        () if ends(&[".txt", ".tsv"]) => {
            let problem = "text needs more than its path: {text: {path: ..., tokenizer: ..., \
                           sequence_length: ...}}, or {pairs: {path: ..., tokenizer: ...}}";
            return Err(DataError::file(path, problem));
        }
        () if path.is_dir() || (target.is_none() && picture_files::is_picture_file(path)) => {
            Source::Images { folder: path.to_path_buf(), classes: None }
        }
        () => return Err(DataError::file(path, format!("expected a file ending in {ENDINGS}"))),
    };
    source.open(inputs, target)
}

fn only_input(what: &str, path: &Path, inputs: &[ExpectedTensor]) -> Result<(), DataError> {
    match inputs {
        [_] => Ok(()),
        _ => {
            let count = inputs.len();
            let problem = format!(
                "{what} one input, but the model has {count}; give a .safetensors file with a \
                 tensor for each"
            );
            Err(DataError::file(path, problem))
        }
    }
}

/// Opens a file of named columns. Each is requested in some dtype.
fn by_name(
    table: &Table,
    inputs: &[ExpectedTensor],
    target: Option<&ExpectedTensor>,
    open: impl Fn(&Table, &BTreeMap<String, DType>) -> Result<BTreeMap<String, Column>, DataError>,
) -> Result<Columns, DataError> {
    let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
    let table = table.resolved(&names)?;
    // If no target is requested, read only the columns of the inputs.
    let table = match (target, table.inputs.values().next()) {
        (None, Some(column)) => Table { target: column.clone(), ..table },
        _ => table,
    };
    let column = |name: &String| table.inputs.get(name).cloned().unwrap_or_default();
    let dtypes = inputs.iter().map(|input| (column(&input.name), input.dtype));
    let dtypes = dtypes.chain(target.map(|target| (table.target.clone(), target.dtype))).collect();
    let columns = open(&table, &dtypes)?;
    let get =
        |name: &str| columns.get(name).cloned().ok_or_else(|| table.missing("column", name, &[]));
    let inputs =
        names.iter().map(|name| get(&column(&name.to_string()))).collect::<Result<_, _>>()?;
    Ok(Columns { inputs, target: target.map(|_| get(&table.target)).transpose()? })
}
