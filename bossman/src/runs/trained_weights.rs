//! The trained weights in a run's folder, and the steps that made them.

use super::paths::{has_run, is_run_folder};
use super::EventReader;
use crate::events::Event;
use crate::BossManError;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The weights after the last epoch, and those with the best validation.
pub(crate) const LAST_WEIGHTS: &str = "weights.safetensors";
pub(crate) const BEST_WEIGHTS: &str = "weights.best.safetensors";

/// The trained weights in a run's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainedWeights {
    /// Those after the last epoch.
    pub last: Option<SavedWeights>,
    /// Those with the best validation.
    pub best: Option<SavedWeights>,
}

/// A file of weights in a run's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedWeights {
    /// The file.
    pub path: PathBuf,
    /// The step after which they were saved. `None` if the folder has no events that tell it.
    pub step: Option<u64>,
    /// Whether they are elsewhere (`--save`), and something wrote the file after the run did, as
    /// another run with the same `--save`.
    pub is_replaced: bool,
}

impl TrainedWeights {
    /// Finds the weights in the folder of a run. A link in it may lead to weights that the run did
    /// not write.
    pub fn in_folder(folder: &Path) -> Self {
        let Saves { last, best, are_known } = Saves::in_folder(folder);
        let saved = |name: &str, save: Option<Save>| {
            let path = folder.join(name);
            let found = path.metadata().ok()?;
            let is_elsewhere = path.is_symlink();
            if is_elsewhere && are_known && save.is_none() {
                return None;
            }
            let is_replaced = is_elsewhere && save.is_some_and(|save| !save.made(&found));
            Some(SavedWeights { path, step: save.map(|save| save.step), is_replaced })
        };
        Self { last: saved(LAST_WEIGHTS, last), best: saved(BEST_WEIGHTS, best) }
    }

    /// A remark for a user who gets the best weights, if the last ones are of another step.
    pub fn note_on_best(&self) -> Option<String> {
        let (best, last) = (self.best.as_ref()?.step?, self.last.as_ref()?.step?);
        (best != last).then(|| {
            format!(
                "weights after step {best}, which had the best validation; `--weights last` takes \
                 those after step {last}"
            )
        })
    }
}

/// Whether a path is that of weights that `bossman train` wrote into the folder of a run.
pub fn is_trained_weights(path: &Path) -> bool {
    let is_named = [LAST_WEIGHTS, BEST_WEIGHTS].iter().any(|name| path.ends_with(name));
    is_named && path.parent().is_some_and(|folder| is_run_folder(folder) && has_run(folder))
}

/// Weights that a run has saved.
#[derive(Clone, Copy)]
struct Save {
    step: u64,
    modified: Option<f64>,
}

impl Save {
    /// Whether a file may be the one that was saved.
    fn made(&self, file: &Metadata) -> bool {
        // File systems round differently.
        let is_same = |(saved, now): (f64, f64)| (saved - now).abs() < 0.01;
        self.modified.zip(modified(file)).is_none_or(is_same)
    }
}

/// The time of the last change of a file, in seconds since 1970, UTC.
pub(crate) fn modified(file: &Metadata) -> Option<f64> {
    let since = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs_f64())
}

/// The last saves of weights, by the events of a run.
#[derive(Default)]
struct Saves {
    last: Option<Save>,
    best: Option<Save>,
    /// Whether there are events: then the run saved nothing else.
    are_known: bool,
}

impl Saves {
    /// Events that cannot be read are as good as none.
    fn in_folder(folder: &Path) -> Self {
        Self::read(folder).ok().flatten().unwrap_or_default()
    }

    fn read(folder: &Path) -> Result<Option<Self>, BossManError> {
        let mut saves = Self::default();
        let Some(mut events) = EventReader::open(folder)? else { return Ok(None) };
        while let Some(logged) = events.next_change()? {
            saves.are_known = true;
            if let Event::WeightsSaved { step, best, modified, .. } = logged.event {
                let kept = if best { &mut saves.best } else { &mut saves.last };
                *kept = Some(Save { step, modified });
            }
        }
        Ok(Some(saves))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn folder_with(files: &[&str], events: &[(bool, u64)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let line = |(best, step): &(bool, u64)| {
            let event = serde_json::json!({"time": 1.5, "version": 1, "event": "weights_saved",
                                           "path": "w", "step": step, "best": best,
                                           "modified": 1.0});
            format!("{event}\n")
        };
        let lines: String = events.iter().map(line).collect();
        std::fs::write(folder.path().join("events.jsonl"), lines).unwrap();
        folder
    }

    #[test]
    fn the_best_weights_are_told_from_later_ones() {
        let both = [LAST_WEIGHTS, BEST_WEIGHTS];
        let folder = folder_with(&both, &[(true, 4), (false, 4), (false, 8), (false, 12)]);
        let found = TrainedWeights::in_folder(folder.path());
        assert_eq!(found.best.as_ref().unwrap().step, Some(4));
        assert_eq!(found.last.as_ref().unwrap().step, Some(12));
        let note = found.note_on_best().unwrap();
        assert!(note.contains("after step 4") && note.contains("after step 12"), "{note}");

        let folder = folder_with(&both, &[(true, 4), (false, 4)]);
        assert_eq!(TrainedWeights::in_folder(folder.path()).note_on_best(), None);
        let folder = folder_with(&[BEST_WEIGHTS], &[(true, 4), (false, 8)]);
        let found = TrainedWeights::in_folder(folder.path());
        assert_eq!((found.last.clone(), found.note_on_best()), (None, None));
    }

    #[test]
    fn weights_of_another_run_are_told_apart() {
        let folder = folder_with(&[], &[(false, 4)]);
        let elsewhere = folder.path().join("w.safetensors");
        std::fs::write(&elsewhere, "").unwrap();
        for name in [LAST_WEIGHTS, BEST_WEIGHTS] {
            std::os::unix::fs::symlink(&elsewhere, folder.path().join(name)).unwrap();
        }
        let written = std::fs::File::options().append(true).open(&elsewhere).unwrap();
        for (after, is_replaced) in [(0, false), (60, true)] {
            written.set_modified(UNIX_EPOCH + Duration::from_secs(1 + after)).unwrap();
            let found = TrainedWeights::in_folder(folder.path());
            assert_eq!(found.best, None, "the run saved no best weights");
            assert_eq!(found.last.map(|last| last.is_replaced), Some(is_replaced));
        }
    }

    #[test]
    fn only_weights_in_the_folder_of_a_run_are_of_a_run() {
        let folder = folder_with(&[LAST_WEIGHTS, "w.safetensors", "run.yaml"], &[]);
        assert!(is_trained_weights(&folder.path().join(LAST_WEIGHTS)));
        assert!(!is_trained_weights(&folder.path().join("w.safetensors")));
        // A project has a run file, too.
        std::fs::remove_file(folder.path().join("events.jsonl")).unwrap();
        assert!(!is_trained_weights(&folder.path().join(LAST_WEIGHTS)));
        assert!(!is_trained_weights(Path::new(LAST_WEIGHTS)));
    }

    #[test]
    fn a_folder_without_readable_events_has_its_weights() {
        let folder = folder_with(&[LAST_WEIGHTS, BEST_WEIGHTS], &[]);
        std::fs::write(folder.path().join("events.jsonl"), "{broken\n{}\n").unwrap();
        let found = TrainedWeights::in_folder(folder.path());
        assert_eq!(found.best.as_ref().unwrap().step, None);
        assert_eq!(found.note_on_best(), None);
    }
}
