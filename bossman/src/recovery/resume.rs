//! The state that a run resumes from: a checkpoint or a peer snapshot.

use crate::checkpoint::{
    CheckpointEntry, Checkpoints, Counters, KeepBest, Policy, ReadError, RunRecord, StoredState,
};
use crate::data::disk;
use crate::events::Events;
use crate::recovery::peer_snapshots::{peer_snapshots, restore_peer_state, PeerState};
use crate::run_file::RunFile;
use crate::train::settings::TrainOptions;
use crate::{BossMan, BossManError};
use pipeline::recovery::{StateSource, StoredSteps};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Stands for a checkpoint's name: resume from the last checkpoint, or begin without one.
const IF_ANY: &str = "if-any";
/// The most bytes of a line of metrics.
const MAX_METRICS_LINE: u64 = 1 << 16;

/// The state that a run resumes from.
pub(crate) enum ResumeState {
    /// A checkpoint in its files.
    Checkpoint(Arc<StoredState>, RunRecord),
    /// A peer snapshot, which workers store.
    PeerSnapshot(PeerState),
}

impl ResumeState {
    pub(crate) fn counters(&self) -> Counters {
        match self {
            ResumeState::Checkpoint(state, _) => state.counters,
            ResumeState::PeerSnapshot(kept) => kept.counters,
        }
    }

    pub(crate) fn run(&self) -> &RunRecord {
        match self {
            ResumeState::Checkpoint(_, run) => run,
            ResumeState::PeerSnapshot(kept) => &kept.run,
        }
    }

    pub(crate) fn peer_state(&self) -> Option<&PeerState> {
        match self {
            ResumeState::Checkpoint(..) => None,
            ResumeState::PeerSnapshot(kept) => Some(kept),
        }
    }

    /// The source that a report names.
    pub(crate) fn source(&self) -> StateSource {
        let step = self.counters().step;
        match self {
            ResumeState::Checkpoint(..) => StateSource::Checkpoint { step },
            ResumeState::PeerSnapshot(_) => StateSource::PeerSnapshot { step },
        }
    }

    /// Gives it to the workers.
    pub(crate) async fn restore(&self, boss: &mut BossMan) -> Result<(), BossManError> {
        match self {
            ResumeState::Checkpoint(state, _) => boss.restore_stored(state).await,
            ResumeState::PeerSnapshot(kept) => restore_peer_state(&mut boss.trainer, kept).await,
        }
    }
}

/// The search for the state of a run.
pub(crate) struct Search<'a> {
    pub(crate) run: &'a RunRecord,
    /// The steps of the whole run.
    pub(crate) steps: u64,
    pub(crate) checkpoints: Option<&'a Checkpoints>,
    pub(crate) metrics: Option<&'a Path>,
    pub(crate) events: &'a Events,
}

impl Search<'_> {
    /// Returns the newest state to resume from: a peer snapshot of the run, or its last whole
    /// checkpoint. `already_read` is a checkpoint that was read before.
    ///
    /// # Errors
    /// Workers were lost again. Or the metrics, or a checkpoint that may be newer than the
    /// snapshot, cannot be read.
    pub(crate) async fn newest(
        self,
        boss: &mut BossMan,
        already_read: Option<ResumeState>,
    ) -> Result<Option<ResumeState>, BossManError> {
        let Search { run, steps, checkpoints, metrics, events } = self;
        let copies = match run.run_id {
            Some(number) => peer_snapshots(&boss.trainer, number).await?,
            None => Vec::new(),
        };
        let mut kept = None;
        for copy in copies {
            // A worker may send anything.
            let is_of_run = copy.run.differs(run).is_none() && copy.counters.step <= steps;
            if !is_of_run {
                continue;
            }
            match metrics {
                Some(path) if !matches_metrics(path, &copy).await? => {
                    let (path, step) = (path.display(), copy.counters.step);
                    let what = format!("the line of step {step}");
                    let so = "so the peer snapshot of that step is not used";
                    events.warn_at(step, format!("{path} no longer has {what}, {so}"));
                }
                _ => {
                    kept = Some(copy);
                    break;
                }
            }
        }
        // No other process writes checkpoints of this run. So they need not be read if the snapshot
        // is not older.
        let known = match (&already_read, checkpoints) {
            (Some(found), _) => Some(found.counters().step),
            (None, Some(checkpoints)) => checkpoints.newest_known(),
            (None, None) => None,
        };
        let peer_snapshot = kept.as_ref().map(|kept| kept.counters.step);
        let newest = |checkpoint| StoredSteps { peer_snapshot, checkpoint }.newest();
        if matches!(newest(known), StateSource::PeerSnapshot { .. }) {
            return Ok(kept.map(ResumeState::PeerSnapshot));
        }
        let found = match (already_read, checkpoints) {
            (None, Some(checkpoints)) => last_checkpoint(checkpoints, events).await?,
            (already_read, _) => already_read,
        };
        // A newer checkpoint may be damaged, so this one may be older than the snapshot.
        match newest(found.as_ref().map(|found| found.counters().step)) {
            StateSource::PeerSnapshot { .. } => Ok(kept.map(ResumeState::PeerSnapshot)),
            _ => Ok(found),
        }
    }
}

/// Whether the metrics fit a snapshot: the line of its step must end at the length that the file
/// had when the snapshot was made. It does not if the machine lost lines since, or if the run
/// resumed from an older state.
///
/// # Errors
/// The metrics cannot be read.
async fn matches_metrics(path: &Path, kept: &PeerState) -> Result<bool, BossManError> {
    let Some(expected) = kept.run.metrics else { return Ok(true) };
    let step = kept.counters.step;
    let line = disk::retry(disk::WAITS, || std::future::ready(last_line(path, expected))).await;
    let line = line.map_err(|e| BossManError::io(path, &e))?;
    let line: Option<serde_json::Value> = line.and_then(|line| serde_json::from_slice(&line).ok());
    Ok(line.is_some_and(|line| line["step"].as_u64() == Some(step)))
}

/// The last line of the first `bytes` bytes of a file. Nothing if there is no file, if it is
/// shorter, or if no line ends there.
///
/// # Errors
/// The file cannot be read.
fn last_line(path: &Path, bytes: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut file = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // A worker sent this length, so it is checked before memory is taken.
    if file.metadata()?.len() < bytes {
        return Ok(None);
    }
    let from = bytes.saturating_sub(MAX_METRICS_LINE);
    file.seek(SeekFrom::Start(from))?;
    let mut end = vec![0; (bytes - from) as usize];
    match file.read_exact(&mut end) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let Some(lines) = end.strip_suffix(b"\n") else { return Ok(None) };
    let begin = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    Ok(Some(lines[begin..].to_vec()))
}

/// Compares the last checkpoint with its hashes while the run waits for workers and gives them
/// their stages, so that they need not wait for that later.
///
/// # Errors
/// A checkpoint that may be the last whole one still cannot be read after several attempts.
pub(crate) async fn read_ahead(
    checkpoints: Option<&Checkpoints>,
    events: &Events,
) -> Result<Option<ResumeState>, BossManError> {
    match checkpoints {
        Some(checkpoints) => last_checkpoint(checkpoints, events).await,
        None => Ok(None),
    }
}

/// The last whole checkpoint, if any.
///
/// # Errors
/// A checkpoint that may be the last whole one still cannot be read after several attempts.
async fn last_checkpoint(
    checkpoints: &Checkpoints,
    events: &Events,
) -> Result<Option<ResumeState>, BossManError> {
    // The fault that cut workers off may also cut off a store.
    let mut waits = [1, 4, 16].into_iter();
    loop {
        match checkpoints.last_whole().await {
            Ok(found) => {
                return Ok(found.map(|state| {
                    let run = state.run.clone();
                    ResumeState::Checkpoint(Arc::new(state), run)
                }))
            }
            Err(error) => match waits.next() {
                None => return Err(error),
                Some(seconds) => {
                    events.warn(format!("{error}; trying again in {seconds} s"));
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                }
            },
        }
    }
}

/// Checks that the initial weights and the state to resume from do not contradict each other.
pub(crate) fn check_weights_or_resume(settings: &TrainOptions) -> Result<(), BossManError> {
    if settings.weights.is_none() || settings.resume.is_none() || may_start_fresh(settings) {
        return Ok(());
    }
    let problem = "--weights: with --resume the run goes on with its checkpoint's; leave one of \
                   them out, or take --resume=if-any, which begins with these where there is no \
                   checkpoint yet";
    Err(BossManError::Usage(problem.into()))
}

/// Whether the run begins if there is nothing to resume from.
pub(crate) fn may_start_fresh(settings: &TrainOptions) -> bool {
    settings.resume.as_ref().is_some_and(|name| name.as_deref() == Some(IF_ANY))
}

/// The run's checkpoints, and the one to resume from.
pub(crate) async fn open_checkpoints(
    file: &RunFile,
    settings: &TrainOptions,
    run: &RunRecord,
) -> Result<(Option<(Checkpoints, Policy)>, Option<ResumeState>), BossManError> {
    let Some(policy) = &file.checkpoint else {
        return match settings.resume {
            Some(_) => Err(BossManError::Usage(
                "--resume: the run file has no `checkpoint`, so a run of it cannot go on exactly; \
                 begin from the weights that it saved with --weights FILE, and set `checkpoint: \
                 {every: ..}`"
                    .into(),
            )),
            None => Ok((None, None)),
        };
    };
    let validation = file.data.as_ref().and_then(|data| data.validation.as_ref());
    if policy.keep_best.is_some() && validation.is_none() {
        return Err(BossManError::Usage(
            "`keep_best`: the run's `data` has no `validation` to tell the best by".into(),
        ));
    }
    if policy.keep_best == Some(KeepBest::Accuracy) && file.loss.classes().is_none() {
        return Err(BossManError::Usage(format!(
            "`keep_best: accuracy`: {} has no classes; use `loss`",
            file.loss
        )));
    }
    let if_any = may_start_fresh(settings);
    let Some(dir) = &policy.dir else {
        return Err(BossManError::Usage(
            "`checkpoint` needs `dir`, because the run has no folder".into(),
        ));
    };
    let mut checkpoints = Checkpoints::open(dir, if_any || settings.resume.is_none())?
        .events(settings.events.clone());
    let locked = checkpoints.lock();
    let listed = checkpoints.list().await?;
    let begins = if_any && listed.iter().all(CheckpointEntry::is_unfinished);
    match locked {
        // It may hang, or its machine may. The workers of a run obey only one boss, so only one of
        // them writes.
        Err(held) if settings.resume.is_some() && !begins => settings.events.warn(held.to_string()),
        locked => locked?,
    }
    let Some(name) = settings.resume.as_ref().filter(|_| !begins) else {
        // Two runs in one folder could not be told apart later.
        return match listed.into_iter().rfind(|listed| !listed.is_unfinished()) {
            Some(CheckpointEntry { bytes: Err(ReadError::Unreadable(error)), .. }) => Err(error),
            Some(last) => Err(BossManError::Usage(format!(
                "{}: holds checkpoints of a run up to step {}; --resume goes on with it; else \
                 name another folder",
                dir, last.step
            ))),
            None => Ok((Some((checkpoints, policy.clone())), None)),
        };
    };
    let state = checkpoints.resume(name.as_deref().filter(|name| *name != IF_ANY)).await?;
    let mut before = state.run.clone();
    let microbatches = if file.microbatches == 0 { before.microbatches } else { file.microbatches };
    if let Some(problem) = before.differs(&RunRecord { microbatches, ..run.clone() }) {
        return Err(BossManError::Usage(format!(
            "--resume: {problem}, so the run would not go on as it was; restore that, or begin \
             anew in another folder"
        )));
    }
    if name.as_deref().is_some_and(|name| name != IF_ANY) {
        // The run may continue differently from here, so the peer snapshots of the old run do not
        // belong to it.
        before.run_id = None;
    }
    Ok((
        Some((checkpoints, policy.clone())),
        Some(ResumeState::Checkpoint(Arc::new(state), before)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_metrics_is_found_where_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n").unwrap();
        let line =
            |bytes| last_line(&path, bytes).unwrap().map(|line| String::from_utf8(line).unwrap());
        assert_eq!(line(11).as_deref(), Some("{\"step\":1}"));
        assert_eq!(line(22).as_deref(), Some("{\"step\":2}"));
        // Within a line, after the end, before the beginning, and far after the end.
        assert_eq!((line(12), line(34), line(0), line(u64::MAX)), (None, None, None, None));
        assert_eq!(last_line(&folder.path().join("none"), 11).unwrap(), None);
    }

    /// A failed read proves nothing about the lines.
    #[test]
    #[cfg(unix)]
    fn metrics_that_cannot_be_read_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::os::unix::fs::symlink(&path, &path).unwrap();
        last_line(&path, 11).unwrap_err();
    }
}
