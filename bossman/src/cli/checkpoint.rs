//! `bossman checkpoint`: what a folder of checkpoints holds.

use super::fleet::until_interrupted;
use anyhow::Result;
use bossman::checkpoint::{Checkpoints, Condition, Listed};
use bossman::{output, BossManError};
use serde_json::json;

#[derive(clap::Subcommand)]
pub(crate) enum Checkpoint {
    /// List the checkpoints in a folder, and those that are not finished; `verify` reads their files.
    #[command(after_help = "Example: bossman checkpoint ls checkpoints")]
    Ls {
        /// The folder, or URL, that the run file names.
        dir: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read checkpoints and compare every file with what was written; 1 where one is damaged.
    #[command(after_help = "Example: bossman checkpoint verify checkpoints step-00000100")]
    Verify {
        /// The folder, or URL, that the run file names.
        dir: String,
        /// Which [default: all]
        name: Option<String>,
    },
    /// Delete checkpoints, and what is left of those that were never finished.
    #[command(after_help = "\
Examples:
  bossman checkpoint prune checkpoints --keep 2              all but the last two
  bossman checkpoint prune checkpoints --after step-00000100  those after this one, to go on from it")]
    Prune {
        /// The folder, or URL, that the run file names.
        dir: String,
        /// Keep so many of the last ones.
        #[arg(long, value_name = "N", required_unless_present = "after", value_parser = clap::value_parser!(u64).range(1..))]
        keep: Option<u64>,
        /// Delete those after this one.
        #[arg(long, value_name = "NAME", conflicts_with = "keep")]
        after: Option<String>,
    },
}

impl Checkpoint {
    pub(crate) fn run(self) -> Result<()> {
        until_interrupted("nothing more was done", async {
            match self {
                Checkpoint::Ls { dir, json } => ls(&Checkpoints::open(&dir, false)?, json).await,
                Checkpoint::Verify { dir, name } => verify(&Checkpoints::open(&dir, false)?, name).await,
                Checkpoint::Prune { dir, keep, after } => prune(&Checkpoints::open(&dir, false)?, keep, after).await,
            }
        })
    }
}

async fn ls(checkpoints: &Checkpoints, json: bool) -> Result<(), BossManError> {
    for Listed { name, step, condition, .. } in checkpoints.list().await? {
        let problem = match condition {
            Condition::Whole(bytes) => {
                let line = match json {
                    true => json!({"name": name, "step": step, "bytes": bytes}).to_string(),
                    false => format!("{name}  {:.1} MiB", bytes as f64 / f64::from(1 << 20)),
                };
                output::line(&line)?;
                continue;
            }
            Condition::Begun => "not whole: it has no manifest.json".to_string(),
            Condition::Damaged(problem) => format!("not whole: {problem}"),
            Condition::Unreadable(problem) => problem,
        };
        let line = match json {
            true => json!({"name": name, "step": step, "problem": problem}).to_string(),
            false => format!("{name}  {problem}"),
        };
        output::line(&line)?;
    }
    Ok(())
}

async fn verify(checkpoints: &Checkpoints, only: Option<String>) -> Result<(), BossManError> {
    let names: Vec<String> = match only {
        Some(name) => vec![name],
        None => checkpoints.list().await?.into_iter().map(|listed| listed.name).collect(),
    };
    let (mut damaged, mut unreadable) = (0, 0);
    for name in &names {
        match checkpoints.verify(name).await {
            Ok(()) => drop(output::line(&format!("{name}  whole"))?),
            Err(error) => {
                match error.is_damage() {
                    true => damaged += 1,
                    false => unreadable += 1,
                }
                output::line(&format!("{name}  {error}"))?;
            }
        }
    }
    let of = names.len();
    match (damaged, unreadable) {
        (0, 0) => Ok(()),
        (_, 0) => Err(BossManError::Usage(format!("{damaged} of {of} checkpoints are damaged"))),
        _ => {
            Err(BossManError::Usage(format!("{unreadable} of {of} checkpoints cannot be read, {damaged} are damaged")))
        }
    }
}

async fn prune(checkpoints: &Checkpoints, keep: Option<u64>, after: Option<String>) -> Result<(), BossManError> {
    let listed = checkpoints.list().await?;
    let whole: Vec<&Listed> = listed.iter().filter(|listed| matches!(listed.condition, Condition::Whole(_))).collect();
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
    for listed in listed.iter().filter(|listed| {
        // The newest may be at work.
        let unfinished = after.is_none() && listed.condition == Condition::Begun && listed.step < newest;
        // It may be whole.
        if let Condition::Unreadable(problem) = &listed.condition {
            output::warn(&format!("warning: {} is not deleted: {problem}", listed.name));
            return false;
        }
        unfinished || listed.step > last_kept || (after.is_none() && listed.step < first_kept)
    }) {
        checkpoints.remove(&listed.name).await?;
        output::line(&format!("deleted {}", listed.name))?;
    }
    Ok(())
}
