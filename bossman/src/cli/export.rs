//! `bossman export`: weights for other programs, without workers.

use super::run_argument::{self, Reads, TrainedRun, Trust};
use anyhow::{bail, Context, Result};
use bossman::output;
use bossman::receipt::{Receipt, RECEIPT};
use bossman::run_file::{RunFile, Weights};
use bossman::runs::is_trained_weights;
use bossman::{export_files, is_huggingface, ExportSettings, HuggingFaceExport, Model, StateDict};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  bossman export run.yaml --weights w.safetensors --dtype bf16 --max-shard-size 2GB --to folder
  bossman export runs/latest --format hf --to SmolLM2-mine   a folder for transformers")]
pub(crate) struct Export {
    #[command(flatten)]
    run: TrainedRun,
    /// The file to write, or with --max-shard-size or hf the folder. A folder for hf must be new.
    #[arg(long, value_name = "PATH")]
    to: PathBuf,
    /// `safetensors`: the weights under the model's names. `hf`: a folder as the one that the run
    /// began with, for transformers [default: hf if the run file's `weights` is such a folder and
    /// --to does not end in .safetensors]
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    format: Option<Format>,
    /// Floating-point tensors become this type: f32, bf16 or f16 [default: the model's; with hf
    /// that of each tensor in the first folder]
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    dtype: Option<tch::Kind>,
    /// Write several files of this size at most, and their index, as 500MB or 2GB [default: one
    /// file; with hf 5GB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_shard_size: Option<u64>,
}

/// The most runs that went on with each other's weights.
const MAX_RUNS: usize = 1000;

/// What is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Safetensors,
    HuggingFace,
}

fn format(text: &str) -> Result<Format, String> {
    match text {
        "safetensors" => Ok(Format::Safetensors),
        "hf" => Ok(Format::HuggingFace),
        _ => Err("expected safetensors or hf".into()),
    }
}

fn dtype(text: &str) -> Result<tch::Kind, String> {
    match text {
        "f32" => Ok(tch::Kind::Float),
        "bf16" => Ok(tch::Kind::BFloat16),
        "f16" => Ok(tch::Kind::Half),
        _ => Err("expected f32, bf16 or f16".into()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "KB" => Some(1_000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000),
        "" | "B" => Some(1),
        _ => None,
    };
    let size =
        digits.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    size.filter(|size| *size > 0).ok_or_else(|| "expected a size, as 500MB or 2GB".into())
}

impl Export {
    pub(crate) fn run(mut self) -> Result<()> {
        let (file, folder) = run_argument::run_file(&self.run.run)?;
        if let Some(folder) = &folder {
            // `latest` may lead elsewhere soon.
            self.run.run.clone_from(folder);
        }
        let last = Begun { file, folder };
        let is_file = self.to.extension().is_some_and(|ending| ending == "safetensors");
        let Begun { file: begun, folder } = match self.format {
            Some(Format::HuggingFace) => first_run(last, &self.run.trust)?,
            // Without a readable first run there is no way back, and the weights are enough.
            None if !is_file => first_run(last.clone(), &self.run.trust).unwrap_or(last),
            _ => last,
        };
        let format = match self.format {
            Some(format) => format,
            None => usual_format(&begun, is_file)?,
        };
        if format == Format::Safetensors && self.max_shard_size.is_none() {
            StateDict::can_save(&self.to)?;
        }
        let (file, weights) = self.run.open(Reads::Model)?;
        file.check_output("--to", &self.to, weights.as_deref(), None)?;
        let model = Model::from_file(&file.model)?;
        let weights = || named(weights.as_deref(), &file);
        let settings = ExportSettings { dtype: self.dtype, max_shard_bytes: self.max_shard_size };
        let written = match format {
            Format::Safetensors => {
                let Weights { path, rename, .. } = weights()?;
                export_files(&path, &rename, &model, &self.to, &settings)?
            }
            Format::HuggingFace => {
                if let Some(folder) = &folder {
                    self.run.trust.check_initial_weights(&begun, folder)?;
                }
                let source = begun.weights.context(
                    "the run file has no `weights`, so there is no folder of Hugging Face to go \
                     back to; take --format safetensors",
                )?;
                let way = HuggingFaceExport::new(&source.path, &source.rename, &model, &self.to)?;
                check_source(&way, &source, folder.as_deref())?;
                let fresh = way.fresh().join("`, `");
                if !fresh.is_empty() {
                    output::warn(&format!(
                        "warning: {} has no `{fresh}`: written under the model's names, which \
                         transformers may not know",
                        source.path.display()
                    ));
                }
                let Weights { path, rename, .. } = weights()?;
                way.write_files(&path, &rename, &settings)?
            }
        };
        output::print_line(&format!("{written} tensors written to {}", self.to.display()))?;
        Ok(())
    }
}

/// # Errors
/// What the run began with is gone, so the format is not known.
fn usual_format(begun: &RunFile, is_file: bool) -> Result<Format> {
    match &begun.weights {
        _ if is_file => Ok(Format::Safetensors),
        Some(weights) if is_huggingface(&weights.path) => Ok(Format::HuggingFace),
        Some(Weights { path, .. }) if !is_file_name(path) && !path.exists() => bail!(
            "{}: the run began with these weights, and they are gone, so it cannot go back to a \
             folder of Hugging Face; for the weights alone, take --format safetensors",
            path.display()
        ),
        _ => Ok(Format::Safetensors),
    }
}

/// Whether a path is that of a file of weights, or of an index of several.
fn is_file_name(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "safetensors" || ending == "json")
}

/// A run file, and the folder in which it lies if it is a run's.
#[derive(Clone)]
struct Begun {
    file: RunFile,
    folder: Option<PathBuf>,
}

/// The run in which the training of these weights began: a run may go on with the weights in the
/// folder of an earlier run of the same model.
fn first_run(last: Begun, trust: &Trust) -> Result<Begun> {
    let mut first = last;
    // A chain of folders that somebody made may be a circle.
    for _ in 0..MAX_RUNS {
        match earlier_run(&first, trust)? {
            Some(earlier) => first = earlier,
            None => break,
        }
    }
    Ok(first)
}

/// The run in whose folder the weights lie that this one began with. `None` if there is none, or if
/// it had another model. Both run files may be somebody else's.
fn earlier_run(Begun { file: begun, folder }: &Begun, trust: &Trust) -> Result<Option<Begun>> {
    let weights = begun.weights.as_ref().filter(|weights| is_trained_weights(&weights.path));
    let Some(earlier) = weights.and_then(|weights| weights.path.parent()) else { return Ok(None) };
    if let Some(folder) = folder {
        trust.check_initial_weights(begun, folder)?;
    }
    let file = RunFile::from_folder(earlier)?;
    trust.check_initial_weights(&file, earlier)?;
    let (before, after) = (Model::from_file(&file.model)?, Model::from_file(&begun.model)?);
    let is_same = before.graph().layers() == after.graph().layers();
    Ok(is_same.then(|| Begun { file, folder: Some(earlier.to_path_buf()) }))
}

/// The files of the weights to write. Those of the command line have the model's names.
fn named(weights: Option<&Path>, file: &RunFile) -> Result<Weights> {
    let named = weights.map(Weights::of).or_else(|| file.weights.clone());
    named.context("no weights: give --weights PATH")
}

/// Compares the weights that the run began with with the receipt, or warns that it cannot.
fn check_source(
    way: &HuggingFaceExport<'_>,
    source: &Weights,
    folder: Option<&Path>,
) -> Result<()> {
    let receipt = match folder.filter(|folder| folder.join(RECEIPT).is_file()) {
        Some(folder) => Some(Receipt::read(folder)?),
        None => None,
    };
    match receipt.and_then(|receipt| receipt.inputs?.initial_weights) {
        Some(digest) => Ok(way.check_source(&digest)?),
        None => {
            output::warn(&format!(
                "warning: no receipt tells with which weights the run began, so {} was not \
                 compared with them",
                source.path.display()
            ));
            Ok(())
        }
    }
}
