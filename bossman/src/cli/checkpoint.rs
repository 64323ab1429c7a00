//! `bossman checkpoint`: lists, checks and deletes the checkpoints in a folder.

use super::fleet::until_interrupted;
use super::run_argument;
use anyhow::Result;
use bossman::checkpoint::{CheckpointEntry, Checkpoints, ReadError};
use bossman::{output, BossManError};
use serde_json::json;

#[derive(clap::Subcommand)]
pub(crate) enum Checkpoint {
    /// List the checkpoints in a folder, and those that are not finished; `verify` reads their
    /// files.
    #[command(after_help = "Example: bossman checkpoint ls checkpoints")]
    Ls {
        /// The folder of a run, or the folder or URL that its run file names.
        dir: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read checkpoints and compare every file with what was written; 1 if one is damaged or cannot
    /// be read.
    #[command(after_help = "Example: bossman checkpoint verify checkpoints step-00000100")]
    Verify {
        /// The folder of a run, or the folder or URL that its run file names.
        dir: String,
        /// Which [default: all]
        name: Option<String>,
    },
    /// Delete checkpoints, and the remains of those that were never finished.
    ///
    /// `--keep` never deletes one that cannot be read.
    #[command(after_help = "\
Examples:
  bossman checkpoint prune checkpoints --keep 2              all but the last two
  bossman checkpoint prune checkpoints --after step-00000100  those after this one, to go on from \
                            it")]
    Prune {
        /// The folder of a run, or the folder or URL that its run file names.
        dir: String,
        /// Keep this number of last checkpoints.
        #[arg(long, value_name = "N", required_unless_present = "after",
            value_parser = clap::value_parser!(u64).range(1..))]
        keep: Option<u64>,
        /// Delete the checkpoints after this one.
        #[arg(long, value_name = "NAME", conflicts_with = "keep")]
        after: Option<String>,
    },
}

impl Checkpoint {
    pub(crate) fn run(self) -> Result<()> {
        let (Checkpoint::Ls { dir, .. }
        | Checkpoint::Verify { dir, .. }
        | Checkpoint::Prune { dir, .. }) = &self;
        let dir = run_argument::checkpoints(dir)?;
        until_interrupted("nothing more was done", async {
            let checkpoints = Checkpoints::open(&dir, false)?;
            match self {
                Checkpoint::Ls { json, .. } => ls(&checkpoints, json).await,
                Checkpoint::Verify { name, .. } => verify(&checkpoints, name).await,
                Checkpoint::Prune { keep, after, .. } => prune(&checkpoints, keep, after).await,
            }
        })
    }
}

async fn ls(checkpoints: &Checkpoints, json: bool) -> Result<(), BossManError> {
    for CheckpointEntry { name, step, bytes, .. } in checkpoints.list().await? {
        let line = match (&bytes, json) {
            (Ok(bytes), true) => json!({"name": name, "step": step, "bytes": bytes}).to_string(),
            (Err(problem), true) => {
                json!({"name": name, "step": step, "problem": problem.to_string()}).to_string()
            }
            (Ok(bytes), false) => format!("{name}  {:.1} MiB", *bytes as f64 / f64::from(1 << 20)),
            (Err(ReadError::Unreadable(problem)), false) => format!("{name}  unknown: {problem}"),
            (Err(problem), false) => format!("{name}  not whole: {problem}"),
        };
        output::print_line(&line)?;
    }
    Ok(())
}

async fn verify(checkpoints: &Checkpoints, only: Option<String>) -> Result<(), BossManError> {
    let names: Vec<String> = match only {
        Some(name) => vec![name],
        None => checkpoints.list().await?.into_iter().map(|listed| listed.name).collect(),
    };
    let mut problems = Vec::new();
    for name in &names {
        let line = match checkpoints.verify(name).await {
            Ok(()) => format!("{name}  whole"),
            Err(error) => {
                problems.push(match &error {
                    ReadError::Damaged(_) => "are damaged",
                    ReadError::Unfinished(_) => "are not finished",
                    ReadError::Unreadable(_) => "cannot be read",
                });
                format!("{name}  {error}")
            }
        };
        output::print_line(&line)?;
    }
    let counts =
        ["are damaged", "are not finished", "cannot be read"].into_iter().filter_map(|kind| {
            let count = problems.iter().filter(|problem| **problem == kind).count();
            (count > 0).then(|| format!("{count} of {} checkpoints {kind}", names.len()))
        });
    match problems.is_empty() {
        true => Ok(()),
        false => Err(BossManError::Usage(counts.collect::<Vec<_>>().join("; "))),
    }
}

async fn prune(
    checkpoints: &Checkpoints,
    keep: Option<u64>,
    after: Option<String>,
) -> Result<(), BossManError> {
    let listed = checkpoints.list().await?;
    let whole: Vec<&CheckpointEntry> =
        listed.iter().filter(|listed| listed.bytes.is_ok()).collect();
    let last_kept = match &after {
        Some(name) => match listed.iter().find(|listed| listed.name == *name) {
            Some(listed) => listed.step,
            None => return Err(BossManError::Usage(format!("there is no checkpoint `{name}`"))),
        },
        None => u64::MAX,
    };
    let kept = usize::try_from(keep.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let newest = whole.last().map_or(0, |listed| listed.step);
    let first_kept = whole.iter().rev().take(kept).next_back().map_or(0, |listed| listed.step);
    let mut unknown = Vec::new();
    for CheckpointEntry { name, step, bytes, .. } in &listed {
        let goes = match (&after, bytes) {
            (Some(_), _) => *step > last_kept,
            // The newest may still be written.
            (None, Err(ReadError::Unfinished(_))) => *step < newest,
            (None, _) => *step < first_kept,
        };
        match bytes {
            _ if !goes => {}
            // It may be whole. Only with `--after` did the user ask to delete it.
            Err(ReadError::Unreadable(problem)) if after.is_none() => {
                unknown.push(problem.to_string())
            }
            _ => {
                checkpoints.remove(name).await?;
                output::print_line(&format!("deleted {name}"))?;
            }
        }
    }
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(BossManError::Usage(format!(
            "checkpoints that may be whole are not deleted: {}",
            unknown.join("; ")
        ))),
    }
}
