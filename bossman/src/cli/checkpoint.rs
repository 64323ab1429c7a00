//! `bossman checkpoint`: lists, checks and deletes the checkpoints in a folder.

use super::fleet::until_interrupted;
use super::run_argument;
use anyhow::Result;
use bossman::checkpoint::{CheckpointEntry, Checkpoints, ReadError};
use bossman::{output, BossManError, Score, ValidationResult};
use serde_json::json;

#[derive(clap::Subcommand)]
pub(crate) enum Checkpoint {
    /// List the checkpoints in a folder with size, time (UTC), score and which is best, and those
    /// that are not finished; `verify` reads their files.
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
    let listed = checkpoints.list().await?;
    if listed.is_empty() && !json {
        output::warn(&format!("{}: there are no checkpoints", checkpoints.named()));
    }
    let best = Best::of(&listed);
    for entry in &listed {
        output::print_line(&if json { line_of_json(entry, &best) } else { line(entry, &best) })?;
    }
    Ok(())
}

/// The checkpoints with the best scores.
struct Best {
    loss: Option<u64>,
    accuracy: Option<u64>,
}

impl Best {
    fn of(listed: &[CheckpointEntry]) -> Self {
        // The first of equally good ones.
        let best = |rate: fn(&Score) -> Option<f64>| {
            let rated = listed.iter().filter_map(|of| Some((rate(&of.score()?)?, of.step)));
            rated.rev().max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, step)| step)
        };
        Best {
            loss: best(|score| Some(-score.loss).filter(|rate| !rate.is_nan())),
            accuracy: best(|score| score.accuracy),
        }
    }

    /// The measures by which a checkpoint is the best.
    fn measures(&self, step: u64) -> Vec<&'static str> {
        let by = [(self.loss, "loss"), (self.accuracy, "accuracy")];
        by.into_iter().filter(|(best, _)| *best == Some(step)).map(|(_, name)| name).collect()
    }
}

fn line(entry: &CheckpointEntry, best: &Best) -> String {
    let CheckpointEntry { name, step, bytes, .. } = entry;
    let bytes = match bytes {
        Ok(bytes) => *bytes,
        Err(ReadError::Unreadable(problem)) => return format!("{name}  unknown: {problem}"),
        Err(problem) => return format!("{name}  not whole: {problem}"),
    };
    let mut line = format!("{name}  {}", layerspec::human::size(bytes));
    if let Some(time) = entry.time() {
        line += &format!("  {}", humantime::format_rfc3339_seconds(time));
    }
    if let Some(score) = entry.score() {
        line += &format!("  {score}");
    }
    match &best.measures(*step)[..] {
        [] => line,
        measures => line + &format!("  best {}", measures.join(" and ")),
    }
}

fn line_of_json(entry: &CheckpointEntry, best: &Best) -> String {
    let CheckpointEntry { name, step, bytes, .. } = entry;
    let mut line = json!({"name": name, "step": step});
    match bytes {
        Ok(bytes) => line["bytes"] = (*bytes).into(),
        Err(problem) => line["problem"] = problem.to_string().into(),
    }
    if let Some(time) = entry.time() {
        line["time"] = humantime::format_rfc3339_seconds(time).to_string().into();
    }
    if let Some(score) = entry.score() {
        line["validation"] = ValidationResult { score, translations: None }.to_json();
        line["best"] = best.measures(*step).into();
    }
    line.to_string()
}

async fn verify(checkpoints: &Checkpoints, only: Option<String>) -> Result<(), BossManError> {
    let names: Vec<String> = match only {
        Some(name) => vec![name],
        None => checkpoints.list().await?.into_iter().map(|listed| listed.name).collect(),
    };
    if names.is_empty() {
        let problem = format!("{}: there are no checkpoints", checkpoints.named());
        return Err(BossManError::Usage(problem));
    }
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
