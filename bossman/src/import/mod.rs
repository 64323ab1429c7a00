//! `bossman import`: a folder of Hugging Face's transformers becomes a model file and a run file.
//!
//! ```text
//! import -> gguf (a GGUF file becomes such a folder)
//!        -> hf_config (config.json) -> families -> llama_like, bert_like -> family, model_text
//!        -> weights: tensor_headers (a head that is tied is read, nothing else)
//!        -> tokenizer_file, pictures
//!        -> renames -> leftovers (model against headers)
//!        -> model_text, run_text, summary: the files that it writes
//! ```
//!
//! A family is a table from keys of `config.json` to layers, in a file of its own. Blocks of the
//! model file have the names of transformers' modules, so its parameters have the names of the
//! files, or rules of the run file say what they are made of. Nothing is written before everything
//! is checked.

#[cfg(test)]
mod back_tests;
mod bert_like;
mod families;
mod family;
pub(crate) mod gguf;
mod hf_config;
mod leftovers;
mod llama_like;
mod model_text;
mod pictures;
mod proven;
mod renames;
mod run_text;
mod summary;
#[cfg(test)]
mod test_folder;
#[cfg(test)]
mod tests;
mod tokenizer_file;

pub use family::Head;

use crate::data::{atomic_file, disk};
use crate::output::printable;
use crate::weights::tensor_headers::TensorHeaders;
use crate::{BossManError, Model};
use families::family_of;
use family::{FamilyModel, Output, Request, Samples};
use hf_config::HfConfig;
use leftovers::Leftovers;
use model_text::{model_text, ModelFile};
use pictures::Pictures;
use renames::renames;
use run_text::{run_text, RunText};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use summary::Summary;
use tokenizer_file::TokenizerFile;

/// What to import, beside the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// A text file to train on, or a folder of pictures. Without one the run file has no data.
    pub data: Option<PathBuf>,
    /// The model's inputs by name. None are those that the family always has.
    pub inputs: Vec<String>,
    /// Whether the model has its head.
    pub head: Head,
}

/// What an import has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The model file.
    pub model: PathBuf,
    /// The run file.
    pub run: PathBuf,
    /// The page about the model.
    pub summary: PathBuf,
    /// The class of the model in transformers.
    pub architecture: String,
    /// The elements of all parameters. Tied ones count once.
    pub parameters: u64,
    /// What the user may not expect.
    pub warnings: Vec<String>,
}

/// Writes a model file, a run file that begins with its weights, and a page about it, for a folder
/// of Hugging Face's transformers. Of the weights it reads the headers alone, and a head that is
/// tied, to compare it. The run file names the folder, so the folder must stay. A GGUF file in
/// place of the folder is first converted to one, `source` in the folder to write to.
///
/// ```no_run
/// use bossman::{import, ImportOptions, Model};
/// use std::path::Path;
///
/// let imported = import(Path::new("llama"), Path::new("mine"), &ImportOptions::default())?;
/// let model = Model::from_file(&imported.model)?;
/// # Ok::<(), bossman::BossManError>(())
/// ```
///
/// # Errors
/// The architecture is not known, a key of its `config.json` asks for something that BossMan does
/// not have, the tensors are not those of the model, or the folder to write to is not empty.
pub fn import(folder: &Path, to: &Path, options: &ImportOptions) -> Result<Imported, BossManError> {
    check_is_empty(to)?;
    if !gguf::is_named(folder) {
        return import_folder(folder, None, to, options);
    }
    let source = to.join("source");
    std::fs::create_dir_all(&source).map_err(|e| BossManError::io(&source, &e))?;
    let imported = gguf::to_huggingface(folder, &source)
        .and_then(|()| import_folder(&source, Some(folder), to, options));
    if imported.is_err() {
        // The error counts; that nothing stays is a courtesy.
        std::fs::remove_dir_all(&source).ok();
    }
    imported
}

/// As [`import`], into a folder that may have other files. `gguf` is the file that the folder was
/// made of.
fn import_folder(
    folder: &Path,
    gguf: Option<&Path>,
    to: &Path,
    options: &ImportOptions,
) -> Result<Imported, BossManError> {
    if !folder.is_dir() {
        return Err(BossManError::file(folder, "is no folder; name one with a config.json"));
    }
    let folder = std::path::absolute(folder).map_err(|e| BossManError::io(folder, &e))?;
    let config = HfConfig::read(&folder)?;
    let (family, architecture) = family_of(&config)?;
    let headers = TensorHeaders::read(&folder)?;
    let request = Request {
        architecture,
        config: &config,
        headers: &headers,
        head: options.head,
        inputs: &options.inputs,
    };
    let FamilyModel { vars, inputs, entries, samples, leftovers, output } =
        (family.model)(&request)?;
    let name = gguf.map_or(folder.file_name(), Path::file_stem);
    let name = name.map_or("model".into(), |name| name.to_string_lossy());
    let shown = printable(&folder.to_string_lossy(), 1000);
    let rename = renames(&entries)?;
    let names = match rename.texts().renamed.is_empty() {
        true => "",
        false => ", or `rename` in run.yaml says what they are made of",
    };
    let comments = vec![
        format!("Written by `bossman import` from {shown}."),
        format!("{architecture}: parameters have the names of transformers{names}."),
    ];
    let input_count = inputs.len();
    let file = ModelFile { comments, name: name.into_owned(), vars, inputs, entries };
    let text = model_text(&file);
    let model = Model::from_yaml(&text).map_err(|e| {
        let problem = format!("makes a model that BossMan refuses: {e}");
        BossManError::file(config.path(), problem)
    })?;
    let leftovers = Leftovers::of(model.graph(), &headers, &rename, &leftovers)?;
    let (mut tokenizer, mut pictures, mut positions) = (None, None, 0);
    match samples {
        Samples::Tokens { vocab_size, max_positions } => {
            tokenizer = TokenizerFile::read(&folder, &config, vocab_size)?;
            positions = max_positions;
        }
        Samples::Pictures { channels, size } => {
            pictures = Some(Pictures::read(&folder, channels, size)?);
        }
    }
    let data = match &options.data {
        None => None,
        Some(data) if pictures.is_some() => Some(pictures::existing(data, output)?),
        Some(_) if output.is_of_sequences() => {
            let problem = "--data is text to predict the next token of, but the model tells of \
                           whole sequences; leave it out, and add samples to the run file";
            return Err(BossManError::Usage(problem.into()));
        }
        Some(_) if output == Output::HiddenStates || input_count > 1 => {
            let problem = "--data is text to predict the next token of: the model needs its head, \
                           and tokens as its only input; leave out --data, or --head and --inputs";
            return Err(BossManError::Usage(problem.into()));
        }
        Some(_) if tokenizer.is_none() => return Err(no_tokenizer(&folder, gguf)),
        Some(data) => Some(existing(data)?),
    };
    let run = run_text(&RunText {
        weights: &folder,
        rename: &rename,
        ignored: &leftovers.patterns,
        tokenizer: tokenizer.as_ref(),
        data: data.as_deref(),
        pictures: pictures.as_ref(),
        max_positions: positions,
        output,
    })?;
    let summary = Summary {
        folder: &folder,
        architecture,
        graph: model.graph(),
        headers: &headers,
        leftovers: &leftovers,
        output,
    };
    let page = summary.page();
    leftovers.check_ties(&headers)?;
    let mut warnings = Vec::new();
    std::fs::create_dir_all(to).map_err(|e| BossManError::io(to, &e))?;
    let write = |name: &str, text: &str| {
        let path = to.join(name);
        write(&path, text).map(|()| path)
    };
    match (pictures, tokenizer) {
        (Some(pictures), _) => warnings.extend(pictures.warnings),
        (None, Some(tokenizer)) => warnings.extend(tokenizer.warnings),
        (None, None) => warnings.push(no_tokenizer(&folder, gguf).to_string()),
    }
    Ok(Imported {
        model: write("model.yaml", &text)?,
        summary: write("MODEL.md", &page)?,
        // The last one, which uses the others.
        run: write("run.yaml", &run)?,
        architecture: architecture.into(),
        parameters: model.graph().param_count(),
        warnings,
    })
}

/// Refuses a folder with something in it, so that nothing is overwritten.
fn check_is_empty(folder: &Path) -> Result<(), BossManError> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(BossManError::file(folder, "is not empty; name a new folder")),
        },
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(BossManError::io(folder, &e)),
    }
}

/// The bytes of a text that are looked at.
const BEGIN_BYTES: u64 = 64 << 10;

/// The ends of the names of files that hold records, and not a text.
const RECORDS: [&str; 6] = [".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet"];

/// The absolute path of a text file that is there.
fn existing(path: &Path) -> Result<PathBuf, BossManError> {
    let io = |e: std::io::Error| BossManError::io(path, &e);
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let plain = name.strip_suffix(".gz").unwrap_or(&name);
    if let Some(ending) = RECORDS.iter().find(|ending| plain.ends_with(**ending)) {
        let problem = format!(
            "holds records, and --data takes plain text: the braces and names of a {ending} file \
             would be learned. Write the texts to a .txt file, or token ids and targets to a \
             .jsonl file, which the key `data` of the run file names"
        );
        return Err(BossManError::file(path, problem));
    }
    if !disk::is_file(path).map_err(io)? {
        return Err(BossManError::file(path, "is no file; name a text file with --data"));
    }
    if !name.ends_with(".gz") {
        let mut begin = Vec::new();
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(BEGIN_BYTES).read_to_end(&mut begin).map_err(io)?;
        check_text(&begin).map_err(|problem| BossManError::file(path, problem))?;
    }
    std::path::absolute(path).map_err(io)
}

/// Checks the beginning of a text.
fn check_text(begin: &[u8]) -> Result<(), &'static str> {
    match std::str::from_utf8(begin) {
        Ok(text) if text.trim().is_empty() => Err("has no text to train on"),
        // It may end within a character.
        Err(error) if error.error_len().is_some() => Err("is not text in UTF-8"),
        _ => Ok(()),
    }
}

fn no_tokenizer(folder: &Path, gguf: Option<&Path>) -> BossManError {
    if let Some(file) = gguf {
        let problem =
            "has no tokenizer of a kind that is known, so text cannot become its tokens; \
             take the folder of transformers instead";
        return BossManError::file(file, problem);
    }
    let problem = "has no tokenizer.json, so text cannot become its tokens; with transformers, \
                   `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` writes one";
    BossManError::file(folder, problem)
}

fn write(path: &Path, text: &str) -> Result<(), BossManError> {
    let mut file = atomic_file::create(path)?;
    file.write_all(text.as_bytes()).map_err(|e| BossManError::io(path, &e))?;
    atomic_file::commit(path, file)
}
