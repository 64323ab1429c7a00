//! `bossman import`: a folder of Hugging Face's transformers as a model file and a run file.

use super::shell_word::shell_word;
use anyhow::Result;
use bossman::output;
use bossman::{import, Head, ImportOptions};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  bossman import SmolLM2-135M --to smol --data text.txt   to train on a text
  bossman import SmolLM2-135M --to smol                   to generate text; data can be added later

The weights stay where they are; only their names and shapes are read, and a tied head. Code in \
                        the folder is never executed.")]
pub(crate) struct Import {
    /// The folder with config.json, tokenizer.json and the weights in safetensors; or a GGUF file.
    folder: PathBuf,
    /// The folder to write to. It must be empty, or absent.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// A text file or a folder of pictures to train on [default: the run file has no data]
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// The model's inputs, as input_ids,key_padding_mask [default: the first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    inputs: Vec<String>,
    /// `none` leaves out the layers after the last hidden states [default: as the architecture]
    #[arg(long, value_name = "HEAD", value_parser = head)]
    head: Option<Head>,
}

fn head(text: &str) -> Result<Head, String> {
    match text {
        "none" => Ok(Head::None),
        _ => Err("expected none".into()),
    }
}

impl Import {
    pub(crate) fn run(self) -> Result<()> {
        let has_data = self.data.is_some();
        let options = ImportOptions {
            data: self.data,
            inputs: self.inputs,
            head: self.head.unwrap_or_default(),
        };
        let imported = import(&self.folder, &self.to, &options)?;
        for warning in &imported.warnings {
            output::warn(&format!("warning: {warning}"));
        }
        for path in [&imported.model, &imported.run, &imported.summary] {
            output::print_line(&format!("{} written", path.display()))?;
        }
        output::print_line(&format!(
            "{}: {} parameters",
            imported.architecture, imported.parameters
        ))?;
        let run = shell_word(&imported.run.to_string_lossy());
        output::print_line(&match has_data {
            true => format!("bossman train {run} --local 2"),
            false => format!("bossman check {run} --local 2"),
        })?;
        Ok(())
    }
}
