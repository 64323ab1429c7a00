//! The manifest of a checkpoint.

use crate::session::position::Counters;
use crate::Score;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::time::{SystemTime, UNIX_EPOCH};

/// Manifests of later versions are not read. Raise it with every change of the format, because a
/// manifest that cannot be parsed counts as damaged. Version 1 has no `time` and no `made_for`, and
/// version 2 no `classes`.
pub(super) const VERSION: u32 = 3;

/// The prefix of a checkpoint's folder, before its number of steps.
const PREFIX: &str = "step-";
pub(super) const DAMAGED: &str = "is damaged: its content is not what was written";

/// The only part of a manifest that every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

/// The reason why a manifest cannot be used.
#[derive(Debug)]
pub(super) enum ManifestError {
    /// They differ from what was written.
    Damaged(String),
    /// Another program wrote them.
    UnknownVersion(String),
}

/// A checkpoint's `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(super) version: u32,
    /// When it was written: seconds since 1970, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) time: Option<u64>,
    pub(crate) counters: Counters,
    pub(crate) run: RunRecord,
    pub(super) files: Vec<FileEntry>,
    /// The SHA-256 of everything before it, in hexadecimal digits.
    pub(super) sha256: String,
}

/// The part of a run file that determines the next samples, and the rest of the run's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunRecord {
    /// The number of the run, which identifies its peer snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "number")]
    pub(crate) run_id: Option<u64>,
    pub(crate) seed: u64,
    /// The optimizer whose state is in the checkpoint.
    pub(crate) optimizer: String,
    pub(crate) shuffled: bool,
    pub(crate) group_by_length: bool,
    pub(crate) batch_size: u64,
    pub(crate) microbatches: u32,
    pub(crate) accumulate: u32,
    /// The samples to train on.
    pub(crate) samples: u64,
    /// The names of the classes, if the samples to train on have names for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) classes: Option<Vec<String>>,
    /// The bytes of metrics so far, if they are written.
    pub(crate) metrics: Option<u64>,
    /// The validation with the lowest loss so far.
    pub(crate) best: Option<ScoreAtStep>,
    /// The validation of these weights, if there was one.
    #[serde(rename = "look")]
    pub(crate) validation: Option<ScoreAtStep>,
    #[serde(default, skip_serializing_if = "MadeFor::is_resuming")]
    pub(crate) made_for: MadeFor,
}

/// Why a checkpoint was made.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MadeFor {
    /// To resume from: it was due, or the run ended.
    #[default]
    Resuming,
    /// Only because its validation was the best so far.
    Best,
}

impl MadeFor {
    fn is_resuming(&self) -> bool {
        *self == MadeFor::Resuming
    }
}

/// The score of a validation, with its step.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScoreAtStep {
    pub(crate) step: u64,
    /// `None` if it was not a number.
    pub(crate) loss: Option<f64>,
    pub(crate) accuracy: Option<f64>,
}

impl ScoreAtStep {
    pub(crate) fn of(step: u64, score: &Score) -> Self {
        ScoreAtStep {
            step,
            loss: Some(score.loss).filter(|loss| loss.is_finite()),
            accuracy: score.accuracy,
        }
    }

    pub(crate) fn score(&self) -> Score {
        Score { loss: self.loss.unwrap_or(f64::NAN), accuracy: self.accuracy }
    }
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileEntry {
    /// Its path in the checkpoint's folder.
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub(super) sha256: String,
}

impl Manifest {
    pub(super) fn new(
        counters: Counters,
        run: RunRecord,
        files: Vec<FileEntry>,
    ) -> Result<Self, serde_json::Error> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs());
        Manifest { version: VERSION, time, counters, run, files, sha256: String::new() }.signed()
    }

    /// The manifest with its own SHA-256.
    pub(super) fn signed(self) -> Result<Self, serde_json::Error> {
        Ok(Manifest { sha256: self.digest()?, ..self })
    }

    /// Parses a manifest, which may have any content, from the folder of this name.
    pub(super) fn parse(bytes: &[u8], name: &str) -> Result<Self, ManifestError> {
        let no_manifest =
            |e: serde_json::Error| ManifestError::Damaged(format!("is no manifest: {e}"));
        let Versioned { version } = serde_json::from_slice(bytes).map_err(no_manifest)?;
        if !(1..=u64::from(VERSION)).contains(&version) {
            let problem = format!(
                "is of version {version}; this program reads versions 1 to {VERSION}, take \
                 another BossMan"
            );
            return Err(ManifestError::UnknownVersion(problem));
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(no_manifest)?;
        let damaged = |problem: String| Err(ManifestError::Damaged(problem));
        if !manifest.is_whole() {
            return damaged(DAMAGED.into());
        }
        if folder_of_step(manifest.counters.step) != name {
            return damaged(format!("is of step {}", manifest.counters.step));
        }
        if manifest.counters.loss_scale.is_some_and(|scale| !scale.is_possible()) {
            return damaged("has a scale of the loss that cannot be".into());
        }
        let within = |file: &FileEntry| {
            // On Windows these lead out of the folder, too.
            !file.name.contains(['\\', ':'])
                && file.name.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
        };
        match manifest.files.iter().find(|file| !within(file)) {
            Some(stray) => damaged(format!("names `{}`, which is no file of it", stray.name)),
            None => Ok(manifest),
        }
    }

    /// The size of its files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |bytes, file| bytes.saturating_add(file.bytes))
    }

    /// Whether it is as it was written.
    pub(super) fn is_whole(&self) -> bool {
        self.digest().is_ok_and(|digest| digest == self.sha256)
    }

    fn digest(&self) -> Result<String, serde_json::Error> {
        Ok(hash(&serde_json::to_vec(&Manifest { sha256: String::new(), ..self.clone() })?))
    }
}

/// The folder of the checkpoint after `step` steps.
pub(crate) fn folder_of_step(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

/// The step of a checkpoint's folder. `None` if the name is not that of a checkpoint.
pub(super) fn step_of_folder(name: &str) -> Option<u64> {
    let step = name.strip_prefix(PREFIX)?.parse().ok()?;
    (folder_of_step(step) == name).then_some(step)
}

/// A SHA-256 in hexadecimal digits.
pub(super) fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl RunRecord {
    /// The settings that determine the samples and the result, by name.
    pub(super) fn settings(&self) -> [(&'static str, String); 8] {
        [
            ("seed", self.seed.to_string()),
            ("optimizer", self.optimizer.clone()),
            ("batch_size", self.batch_size.to_string()),
            ("microbatches", self.microbatches.to_string()),
            ("accumulate", self.accumulate.to_string()),
            ("group_by_length", self.group_by_length.to_string()),
            ("the number of samples to train on", self.samples.to_string()),
            ("shuffling", self.shuffled.to_string()),
        ]
    }

    /// A difference that would change the next samples or the result.
    pub(crate) fn differs(&self, now: &RunRecord) -> Option<String> {
        let pairs = self.settings().into_iter().zip(now.settings());
        let other = pairs.into_iter().find(|((_, then), (_, now))| then != now);
        let problem =
            other.map(|((what, then), (_, now))| format!("{what} was {then} and is {now}"));
        problem.or_else(|| self.renamed_class(now))
    }

    /// The first class with another name, if both have names. Older checkpoints have none.
    fn renamed_class(&self, now: &RunRecord) -> Option<String> {
        let (then, now) = (self.classes.as_ref()?, now.classes.as_ref()?);
        let name = |names: &[String], class: usize| match names.get(class) {
            Some(name) => format!("`{name}`"),
            None => "no class".into(),
        };
        let mut all = 0..then.len().max(now.len());
        let class = all.find(|class| then.get(*class) != now.get(*class))?;
        Some(format!("class {class} was {} and is {}", name(then, class), name(now, class)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(classes: &[&str]) -> RunRecord {
        let classes = Some(classes.iter().map(ToString::to_string).collect());
        RunRecord { classes, ..RunRecord::default() }
    }

    /// Else labels would be permuted in silence.
    #[test]
    fn a_run_with_other_classes_is_another_run() {
        let before = record(&["cat", "dog", "fox"]);
        let problem = |now: &[&str]| before.differs(&record(now));
        assert_eq!(problem(&["cat", "dog", "fox"]), None);
        let first = "class 0 was `cat` and is `a_dog`";
        assert_eq!(problem(&["a_dog", "cat", "fox"]).as_deref(), Some(first));
        let last = "class 2 was `fox` and is no class";
        assert_eq!(problem(&["cat", "dog"]).as_deref(), Some(last));
        let more = "class 3 was no class and is `gnu`";
        assert_eq!(problem(&["cat", "dog", "fox", "gnu"]).as_deref(), Some(more));
        let other = RunRecord { seed: 1, ..record(&["fox"]) };
        assert_eq!(before.differs(&other).as_deref(), Some("seed was 0 and is 1"));
    }

    /// CKPT-8.
    #[test]
    fn a_record_without_classes_is_read_and_differs_from_none() {
        let named = record(&["cat"]);
        let text = serde_json::to_string(&named).unwrap();
        assert_eq!(serde_json::from_str::<RunRecord>(&text).unwrap(), named);
        let text = serde_json::to_string(&RunRecord::default()).unwrap();
        assert!(!text.contains("classes"), "{text}");
        let older: RunRecord = serde_json::from_str(&text).unwrap();
        assert_eq!((older.differs(&named), named.differs(&older)), (None, None));
    }
}
