//! The argument `RUN` of commands: a run file, or the folder of a run.

use anyhow::Result;
use bossman::checkpoint::Policy;
use bossman::output;
use bossman::run_file::{RunFile, Weights};
pub(super) use bossman::runs::Reads;
use bossman::runs::{check_stays_inside, is_own, is_run_folder, resolve_latest, TrainedWeights};
use std::path::{Path, PathBuf};

/// The word of `--weights` for the weights after the last epoch.
const LAST: &str = "last";

/// The run file, and the folder in which it lies if the argument is the folder of a run.
pub(super) fn run_file(run: &Path) -> Result<(RunFile, Option<PathBuf>)> {
    if run.is_symlink() && !run.exists() {
        let gone = resolve_latest(run);
        anyhow::bail!("{}: leads to {}, which is gone", run.display(), gone.display());
    }
    if !run.is_dir() {
        return Ok((RunFile::from_file(run)?, None));
    }
    let folder = resolve_latest(run);
    if !is_run_folder(&folder) {
        anyhow::bail!("{}: is no run's folder: it has no run.yaml; give a run file", run.display());
    }
    Ok((RunFile::from_folder(&folder)?, Some(folder)))
}

/// How far a command trusts the folder of a run.
#[derive(clap::Args, Clone, Default)]
pub(super) struct Trust {
    /// Look for the run's data in this folder, by the names of the files.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Read what the run file of somebody else's folder names, wherever it is.
    #[arg(long)]
    trust: bool,
    /// Read checkpoints of somebody else's run from an object store.
    #[arg(long)]
    remote: bool,
}

/// As [`run_file`], and tells which folder it is, because `latest` may lead elsewhere soon. A
/// folder that this user's bossman did not write must name only its own files.
pub(super) fn shown(run: &Path, trust: &Trust, reads: Reads) -> Result<(RunFile, Option<PathBuf>)> {
    let (file, folder) = run_file(run)?;
    Ok((trust.checked(file, folder.as_deref(), reads)?, folder))
}

impl Trust {
    /// Checks the weights that the run in a folder began with, which [`TrainedRun`] does not read.
    pub(super) fn check_initial_weights(&self, file: &RunFile, folder: &Path) -> Result<()> {
        if !self.trust && !is_own(folder)? {
            let mut named = file.clone();
            named.checkpoint = None;
            check_stays_inside(folder, &named, Reads::Model)?;
        }
        Ok(())
    }

    /// Tells which folder it is. Checks what a run file of somebody else names.
    fn checked(&self, mut file: RunFile, folder: Option<&Path>, reads: Reads) -> Result<RunFile> {
        if let Some(folder) = folder {
            output::warn(&format!("run folder {}", folder.display()));
            if !self.trust && !is_own(folder)? {
                let mut named = file.clone();
                named.checkpoint =
                    named.checkpoint.filter(|policy| !self.remote || !is_url(policy));
                let reads = if self.data_dir.is_some() { Reads::Model } else { reads };
                check_stays_inside(folder, &named, reads)?;
            }
        }
        if let Some(dir) = &self.data_dir {
            file = file.with_data_in(dir)?;
        }
        Ok(file)
    }
}

/// A run, and which of its trained weights a command takes.
#[derive(clap::Args)]
pub(super) struct TrainedRun {
    /// The run file, or the folder of a run.
    pub(super) run: PathBuf,
    #[command(flatten)]
    pub(super) trust: Trust,
    /// The weights: a safetensors file, an index of several, or their folder; with the folder of a
    /// run also `last` for those of the last epoch [default: the run file's; with the folder of a
    /// run those of the best epoch]
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
}

impl TrainedRun {
    /// Reads the run file, which names the weights of a run's folder. Returns others that the user
    /// named, too.
    pub(super) fn open(&self, reads: Reads) -> Result<(RunFile, Option<PathBuf>)> {
        let (mut file, folder) = run_file(&self.run)?;
        if folder.is_some() {
            // Neither the weights that the run began with nor its checkpoints are read.
            (file.weights, file.checkpoint) = (None, None);
        }
        let mut file = self.trust.checked(file, folder.as_deref(), reads)?;
        let takes_last = self.weights.as_deref() == Some(Path::new(LAST));
        let Some(folder) = folder else {
            if takes_last && !Path::new(LAST).exists() {
                anyhow::bail!("--weights last: it is for the folder of a run; name a file");
            }
            return Ok((file, self.weights.clone()));
        };
        if self.weights.is_some() && !takes_last {
            return Ok((file, self.weights.clone()));
        }
        let mut found = TrainedWeights::in_folder(&folder);
        if takes_last {
            found.best = None;
        }
        let note = found.note_on_best();
        let Some(taken) = found.best.or(found.last) else {
            anyhow::bail!("{}: the run has no weights yet", folder.display());
        };
        if taken.is_replaced {
            let target = taken.path.canonicalize().unwrap_or(taken.path);
            anyhow::bail!(
                "{}: was written again after this run had saved its weights there, maybe by \
                 another run with the same --save; to take it as it is, name it with --weights",
                target.display()
            );
        }
        note.iter().for_each(|note| output::warn(note));
        file.weights = Some(Weights::of(taken.path));
        Ok((file, None))
    }
}

/// The checkpoints of an argument: those of a run's folder, or the folder or URL itself.
pub(super) fn checkpoints(dir: &str) -> Result<String> {
    let path = Path::new(dir);
    if !path.is_dir() || !is_run_folder(&resolve_latest(path)) {
        return Ok(dir.into());
    }
    let (file, folder) = shown(path, &Trust::default(), Reads::Model)?;
    let named = file.checkpoint.and_then(|policy| policy.dir);
    let inside = folder.unwrap_or_default().join("checkpoints");
    Ok(named.unwrap_or_else(|| inside.to_string_lossy().into_owned()))
}

fn is_url(policy: &Policy) -> bool {
    policy.dir.as_ref().is_some_and(|dir| dir.contains("://"))
}
