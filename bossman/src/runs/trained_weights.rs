//! The trained weights in a run's folder, and the steps that made them.

use super::paths::{has_run, is_run_folder};
use super::EventReader;
use crate::events::Event;
use std::path::{Path, PathBuf};

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
}

impl TrainedWeights {
    /// Finds the weights in the folder of a run.
    pub fn in_folder(folder: &Path) -> Self {
        let steps = SavingSteps::in_folder(folder);
        let saved = |name: &str, step| {
            let path = folder.join(name);
            path.exists().then_some(SavedWeights { path, step })
        };
        Self { last: saved(LAST_WEIGHTS, steps.last), best: saved(BEST_WEIGHTS, steps.best) }
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

/// The steps after which weights were saved, by the events of a run.
#[derive(Default)]
struct SavingSteps {
    last: Option<u64>,
    best: Option<u64>,
}

impl SavingSteps {
    /// Events are a help here, so damaged ones are as good as none.
    fn in_folder(folder: &Path) -> Self {
        let mut steps = Self::default();
        let Ok(Some(mut events)) = EventReader::open(folder) else { return steps };
        while let Ok(Some(logged)) = events.next_change() {
            match logged.event {
                Event::WeightsSaved { step, best: true, .. } => steps.best = Some(step),
                Event::WeightsSaved { step, best: false, .. } => steps.last = Some(step),
                _ => {}
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(files: &[&str], events: &[(bool, u64)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let line = |(best, step): &(bool, u64)| {
            let event = serde_json::json!({"time": 1.5, "version": 1, "event": "weights_saved",
                                           "path": "w", "step": step, "best": best});
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
