//! `bossman verify`: compares a run's folder with its receipt, and repeats parts of the run.

use super::fleet::until_interrupted;
use super::run_argument::{self, Reads, Trust};
use anyhow::Result;
use bossman::output;
use bossman::receipt::Receipt;
use bossman::verify::{draw, Exactness, RepeatSettings, Repeated, Verification, Window};
use bossman::BossManError;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bossman verify runs/latest                three parts, drawn at random
  bossman verify runs/digits --all          all of the run

Exit codes: 0 nothing differs; 1 something differs or no part can be repeated, and standard error \
says what.")]
pub(crate) struct Verify {
    /// The folder of a run.
    run: PathBuf,
    #[command(flatten)]
    trust: Trust,
    /// Repeat every part that can be repeated.
    #[arg(long, conflicts_with = "windows")]
    all: bool,
    /// Repeat this many parts, drawn at random; 0 compares hashes only.
    #[arg(long, value_name = "N", default_value_t = 3)]
    windows: usize,
    /// Repeat with this many workers on this machine.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..))]
    local: u16,
    /// Let the workers run the model's TorchScript layers, which are programs.
    #[arg(long)]
    allow_torchscript: bool,
}

impl Verify {
    pub(crate) fn run(self) -> Result<()> {
        let (file, folder) = run_argument::shown(&self.run, &self.trust, Reads::Data)?;
        let Some(folder) = folder else {
            anyhow::bail!("{}: is a file; name the folder of a run", self.run.display());
        };
        let verification = Verification::open(&folder, file)?;
        let settings = RepeatSettings {
            workers: self.local.into(),
            allow_torchscript: self.allow_torchscript,
        };
        let count = (!self.all).then_some(self.windows);
        let found = until_interrupted("nothing more was compared", async {
            verify(verification, count, &settings).await
        })?;
        match found {
            true => Ok(()),
            false => anyhow::bail!("{}: the run is not as its receipt says", folder.display()),
        }
    }
}

/// Returns whether all is as the receipt says.
async fn verify(
    mut verification: Verification,
    count: Option<usize>,
    settings: &RepeatSettings,
) -> Result<bool, BossManError> {
    output::print_line(&described(verification.receipt()))?;
    let exactness = verification.exactness();
    if let Exactness::Nothing { why } = &exactness {
        output::print_line(&format!("only hashes are compared: {why}"))?;
    }
    let differences = verification.compare().await?;
    for difference in &differences {
        output::warn(&format!("differs: {difference}"));
    }
    if !differences.is_empty() {
        return Ok(false);
    }
    let receipt = verification.receipt();
    output::print_line(&format!(
        "files, data, metrics, events and checkpoints have the hashes of the receipt: {} digests",
        receipt.digests.len()
    ))?;
    if matches!(exactness, Exactness::Nothing { .. }) {
        return Ok(true);
    }
    let windows = verification.windows();
    for window in &windows {
        let problem = match &window.problem {
            Some(problem) => format!("cannot be repeated: {problem}"),
            None => "can be repeated".into(),
        };
        output::print_line(&format!("{window} ({} steps): {problem}", window.steps()))?;
    }
    let seed = RandomState::new().build_hasher().finish();
    for window in draw(&windows, count, seed)? {
        let repeated = verification.repeat(&window, settings).await?;
        if let Some(difference) = &repeated.difference {
            output::warn(&format!("differs: {window}: {difference}"));
            return Ok(false);
        }
        output::print_line(&equal(&window, &repeated))?;
    }
    Ok(true)
}

fn described(receipt: &Receipt) -> String {
    let workers: usize = receipt.sessions.iter().map(|session| session.workers.len()).sum();
    format!(
        "receipt of bossman {}, libtorch {}: {} steps in {} sessions with {workers} workers",
        receipt.bossman,
        receipt.libtorch,
        receipt.steps,
        receipt.sessions.len()
    )
}

fn equal(window: &Window, repeated: &Repeated) -> String {
    let Repeated { digests, losses, tensors, other_processor, .. } = repeated;
    match other_processor {
        None => format!(
            "{window}: equal to the bit: {losses} losses, {digests} digests, {tensors} files of \
             tensors"
        ),
        Some(processor) => format!(
            "{window}: {tensors} files of tensors are equal within the tolerance (this processor \
             is another kind: {processor})"
        ),
    }
}
