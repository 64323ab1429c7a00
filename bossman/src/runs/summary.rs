//! A run in a line: what its folder tells about it.

use super::lock::{holder, taken_at, Holder};
use super::paths::has_run;
use super::EventReader;
use crate::events::{Event, WaitReason};
use crate::run_file::RunFile;
use crate::{BossManError, ValidationResult};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The state of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunState {
    /// A process trains in its folder.
    Running {
        /// Its number, if it is known.
        pid: Option<u32>,
    },
    /// All steps are done.
    Ended,
    /// The user ended it.
    Interrupted,
    /// An error ended it.
    Failed {
        /// The error.
        why: String,
    },
    /// Its process ended without a word.
    Crashed,
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RunState::Running { .. } => "running",
            RunState::Ended => "ended",
            RunState::Interrupted => "interrupted",
            RunState::Failed { .. } => "failed",
            RunState::Crashed => "crashed",
        })
    }
}

/// What a run's folder tells about it.
#[derive(Clone, Debug, Serialize)]
pub struct RunSummary {
    /// The name of the folder.
    pub name: String,
    /// The folder.
    pub path: PathBuf,
    /// The state.
    #[serde(flatten)]
    pub state: RunState,
    /// The last step that is done.
    pub step: u64,
    /// The steps of the whole run. `None` if it has not begun.
    pub steps: Option<u64>,
    /// The loss of the last step. `None` if it is no number.
    pub loss: Option<f32>,
    /// The best validation.
    pub best: Option<ValidationResult>,
    /// The workers of the last session.
    pub workers: usize,
    /// The bytes of its files.
    pub bytes: u64,
    /// The step from which it can go on.
    pub resumes_from: Option<u64>,
    /// Why it cannot go on.
    pub why_not: Option<String>,
    /// The time of the last change.
    #[serde(skip)]
    pub changed: SystemTime,
}

impl RunSummary {
    /// Reads the folder of a run.
    ///
    /// # Errors
    /// A file in it cannot be read.
    pub fn read(path: &Path) -> Result<Self, BossManError> {
        let mut run = Self::of_log(path)?;
        if let Holder::Process(pid) = holder(path)? {
            run.state = RunState::Running { pid };
        }
        match run.last_checkpoint() {
            Ok(step) => run.resumes_from = Some(step),
            Err(why) => run.why_not = Some(why),
        }
        Ok(run)
    }

    /// The run that the process in this folder has ended, while it still completes its files.
    /// `None` if it has not ended the run.
    ///
    /// # Errors
    /// A file in the folder cannot be read.
    pub(crate) fn of_ended(path: &Path) -> Result<Option<Self>, BossManError> {
        let run = Self::of_log(path)?;
        // A process that begins to go on with the run finds the end of an earlier one in the log.
        let has_ended = run.state != RunState::Crashed && run.changed > taken_at(path)?;
        Ok(has_ended.then_some(run))
    }

    /// What the log tells.
    fn of_log(path: &Path) -> Result<Self, BossManError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = path.join("events.jsonl");
        let changed = log.metadata().and_then(|of| of.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut run = RunSummary {
            name,
            path: path.to_path_buf(),
            state: RunState::Crashed,
            step: 0,
            steps: None,
            loss: None,
            best: None,
            workers: 0,
            bytes: bytes_of(path),
            resumes_from: None,
            why_not: None,
            changed,
        };
        let mut events = EventReader::open(path)?;
        while let Some(logged) = events.as_mut().map_or(Ok(None), EventReader::next_change)? {
            run.follow(logged.event);
        }
        Ok(run)
    }

    /// Reads all runs in a folder of run folders, the one that changed last first, and passes the
    /// errors of those that cannot be read to `unreadable`.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(
        runs: &Path,
        mut unreadable: impl FnMut(BossManError),
    ) -> Result<Vec<Self>, BossManError> {
        let fault = |e: std::io::Error| BossManError::io(runs, &e);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(runs).map_err(fault)? {
            let path = entry.map_err(fault)?.path();
            // `latest` is a link to one of the others.
            if has_run(&path) && !path.is_symlink() {
                match RunSummary::read(&path) {
                    Ok(run) => found.push(run),
                    Err(error) => unreadable(error),
                }
            }
        }
        found.sort_by(|a, b| b.changed.cmp(&a.changed).then_with(|| a.name.cmp(&b.name)));
        Ok(found)
    }

    fn follow(&mut self, event: Event) {
        match event {
            // A process begins to work in the folder.
            Event::Folder { .. } => self.state = RunState::Crashed,
            Event::Started { steps, done, .. } => {
                (self.steps, self.step) = (Some(steps), done);
            }
            // Those that remain join no second time.
            Event::Waiting { reason: WaitReason::TooFewRemain, .. } => {}
            Event::Waiting { .. } => self.workers = 0,
            Event::Joined { .. } => self.workers += 1,
            Event::Left { .. } => self.workers = self.workers.saturating_sub(1),
            Event::Step { report, .. } => {
                self.step = report.step;
                self.loss = Some(report.loss).filter(|loss| loss.is_finite());
            }
            Event::Validated { validation, best: true, .. } => self.best = Some(validation),
            Event::Interrupted { .. } => self.state = RunState::Interrupted,
            Event::Ended { error: None, .. } => self.state = RunState::Ended,
            Event::Ended { error: Some(why), .. } => self.state = RunState::Failed { why },
            _ => {}
        }
    }

    /// The step of the last checkpoint whose manifest is there, or why the run cannot go on.
    fn last_checkpoint(&self) -> Result<u64, String> {
        match &self.state {
            RunState::Running { .. } => return Err("it runs".into()),
            RunState::Ended => return Err("all its steps are done".into()),
            _ => {}
        }
        if !self.path.join("run.yaml").exists() {
            return Err("it did not begin".into());
        }
        let file = RunFile::from_file(self.path.join("run.yaml"));
        let file = file.map_err(|e| format!("run.yaml cannot be used: {e}"))?;
        let Some(policy) = file.checkpoint else {
            return Err("its run file has no `checkpoint`".into());
        };
        let dir = match policy.dir {
            Some(dir) if dir.contains("://") => {
                return Err(format!("its checkpoints are at {dir}, which was not asked"));
            }
            Some(dir) => PathBuf::from(dir),
            None => self.path.join("checkpoints"),
        };
        let steps = std::fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| {
            let step = entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()?;
            entry.path().join("manifest.json").is_file().then_some(step)
        });
        steps.max().ok_or_else(|| "it has no checkpoint".into())
    }
}

/// The bytes of all files below a folder. Links count nothing.
fn bytes_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(of) if of.is_dir() => bytes_of(&entry.path()),
        Ok(of) if of.is_file() => of.len(),
        _ => 0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::super::lock::FolderLock;
    use super::super::RunFolder;
    use super::*;
    use std::fs::File;
    use std::time::Duration;

    fn write_log(folder: &Path, lines: &[&str]) {
        let line = |line: &&str| format!("{{\"time\":1.0,\"version\":1,{line}}}\n");
        let text: String = lines.iter().map(line).collect();
        std::fs::write(folder.join("events.jsonl"), text).unwrap();
    }

    fn summary(lines: &[&str]) -> RunSummary {
        let folder = tempfile::tempdir().unwrap();
        write_log(folder.path(), lines);
        RunSummary::read(folder.path()).unwrap()
    }

    /// A process that writes the receipt, and one that begins to go on with an ended run.
    #[test]
    fn the_end_counts_if_the_process_in_the_folder_reported_it() {
        let folder = tempfile::tempdir().unwrap();
        let begin = "\"event\":\"folder\",\"path\":\"runs/a\"";
        let ended = "\"event\":\"ended\",\"steps\":3,\"time_s\":1.0,\"error\":null";
        let _lock = FolderLock::take(folder.path()).unwrap();
        let taken = taken_at(folder.path()).unwrap();
        let second = Duration::from_secs(1);
        for (lines, written, state) in [
            (vec![begin, ended], taken + second, Some(RunState::Ended)),
            (vec![begin, ended], taken - second, None),
            (vec![begin, ended, begin], taken + second, None),
        ] {
            write_log(folder.path(), &lines);
            let log = File::options().append(true).open(folder.path().join("events.jsonl"));
            log.unwrap().set_modified(written).unwrap();
            let found = RunSummary::of_ended(folder.path()).unwrap();
            assert_eq!(found.map(|run| run.state), state, "{lines:?}");
        }
    }

    #[test]
    fn a_run_that_cannot_be_read_hides_no_other() {
        let runs = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            std::fs::create_dir(runs.path().join(name)).unwrap();
            write_log(&runs.path().join(name), &[]);
        }
        std::fs::create_dir(runs.path().join("b/lock")).unwrap();
        let mut errors = Vec::new();
        let found = RunSummary::list(runs.path(), |error| errors.push(error.to_string())).unwrap();
        assert_eq!(found.iter().map(|run| &*run.name).collect::<Vec<_>>(), ["a"]);
        assert!(matches!(&errors[..], [error] if error.contains("lock")), "{errors:?}");
    }

    /// A run file is often called `run.yaml`, and lies in the folder of its project.
    #[test]
    fn the_folder_of_a_project_is_no_run() {
        let place = tempfile::tempdir().unwrap();
        let project = place.path().join("project");
        std::fs::create_dir(&project).unwrap();
        std::fs::write(project.join("run.yaml"), "model: m.yaml").unwrap();
        let found = RunSummary::list(place.path(), |error| panic!("{error}")).unwrap();
        assert!(found.is_empty());
        let refused = RunFolder::delete(&project).unwrap_err().to_string();
        assert!(refused.contains("is no run's folder"), "{refused}");
        assert!(project.join("run.yaml").is_file());
    }

    #[test]
    fn workers_that_remain_still_count() {
        let waiting = |reason: &str| {
            format!(
                "\"event\":\"waiting\",\"missing\":1,\"workers\":2,\"reason\":\"{reason}\",\
                 \"waited_s\":0"
            )
        };
        let joined = "\"event\":\"joined\",\"worker\":0,\"address\":\"10.0.0.7\",\"host\":\"h\",\
                      \"device\":\"cpu\",\"processor\":\"p\",\"threads\":2,\"missing\":0";
        let (rejoin, few) = (waiting("rejoin"), waiting("too_few_remain"));
        assert_eq!(summary(&[joined, &few, joined]).workers, 2);
        assert_eq!(summary(&[joined, &rejoin, joined, &few, joined]).workers, 2);
    }

    #[test]
    fn the_last_process_in_a_folder_decides_its_state() {
        let begin = "\"event\":\"folder\",\"path\":\"runs/a\"";
        let started = "\"event\":\"started\",\"steps\":9,\"done\":0,\"from\":null,\
                       \"microbatches\":2,\"metrics_bytes\":0";
        let step = "\"event\":\"step\",\"step\":3,\"loss\":0.5,\"samples\":2,\"tokens\":null,\
                    \"step_ms\":1.0,\"lr\":null,\"grad_norm\":null";
        let best = "\"event\":\"validated\",\"step\":3,\"epoch\":1,\"loss\":0.25,\"best\":true";
        let ended =
            |error| format!("\"event\":\"ended\",\"steps\":3,\"time_s\":1.0,\"error\":{error}");
        let (well, ill) = (ended("null"), ended("\"no memory\""));
        let interrupted =
            "\"event\":\"interrupted\",\"step\":3,\"weights\":null,\"checkpoint\":null";
        let failed = RunState::Failed { why: "no memory".into() };
        for (lines, state) in [
            (vec![begin], RunState::Crashed),
            (vec![begin, started, step], RunState::Crashed),
            (vec![begin, started, step, &well], RunState::Ended),
            (vec![begin, started, step, &ill], failed),
            (vec![begin, started, step, interrupted], RunState::Interrupted),
            (vec![begin, started, interrupted, begin, started], RunState::Crashed),
        ] {
            assert_eq!(summary(&lines).state, state, "{lines:?}");
        }
        let run = summary(&[begin, started, step, best]);
        assert_eq!((run.step, run.steps, run.loss), (3, Some(9), Some(0.5)));
        assert_eq!(run.best.unwrap().score.loss, 0.25);
        assert_eq!(run.why_not.unwrap(), "it did not begin");
    }
}
