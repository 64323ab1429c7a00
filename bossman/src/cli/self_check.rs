//! `bossman self-check`: whole runs on a device, with no other machine and no files.

use super::fleet::{device, until_interrupted};
use anyhow::Result;
use bossman::output;
use bossman::self_check::{self, Preset, Section, SectionResult, Settings, Summary};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bossman self-check                            the first GPU, else the CPU, in a minute
  bossman self-check --device cuda:0,cuda:1     replicas on two GPUs, too
  bossman self-check --preset small --json      with figures of speed, for programs

Exit codes: 0 all is right; 1 a section failed, and its line says why.")]
pub(crate) struct SelfCheck {
    /// The devices, as `cuda:0,cuda:1`: runs are on the first, replicas on two [default: the device
    /// that a worker takes]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = device)]
    device: Vec<String>,
    /// The size of the runs: `tiny` for every device, `small` for the speed of a GPU, `large` for
    /// that of models that people train, too.
    #[arg(long, value_name = "SIZE", default_value = "tiny")]
    preset: Preset,
    /// Print the sections as lines of JSON.
    #[arg(long)]
    json: bool,
    /// Only these sections: device, cuts, replicas, resume, errors, prediction, speed.
    #[arg(long, value_name = "SECTIONS", value_delimiter = ',')]
    only: Vec<Section>,
}

impl SelfCheck {
    pub(crate) fn run(self) -> Result<()> {
        let settings = Settings { devices: self.device, preset: self.preset, only: self.only };
        let mut unwritten = None;
        let print = |result: &SectionResult| {
            let written = output::print_line(&output::safe(&match self.json {
                true => result.json(),
                false => result.text(),
            }));
            let problem = match written {
                Ok(true) => None,
                Ok(false) => Some("standard output: its reader has gone".to_string()),
                Err(error) => Some(error.to_string()),
            };
            unwritten = unwritten.take().or(problem);
        };
        let check = self_check::run(&settings, print);
        let Summary { failed, unchecked } = until_interrupted("nothing more was checked", check)?;
        let mut problems = Vec::new();
        if !failed.is_empty() {
            problems.push(format!("{} failed", failed.join(", ")));
        }
        if !unchecked.is_empty() {
            problems.push(format!("not checked: {}", unchecked.join(", ")));
        }
        // A report with gaps is no report.
        problems.extend(unwritten);
        match problems.is_empty() {
            true => Ok(()),
            false => anyhow::bail!("{}", problems.join("; ")),
        }
    }
}
