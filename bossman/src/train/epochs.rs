//! The end of an epoch: validates the model and saves its weights.

use crate::data::{atomic_file, Dataset, Part};
use crate::events::{Event, Events};
use crate::inference::score::Score;
use crate::run_file::RunFile;
use crate::runs::modified;
use crate::train::validation::validate;
use crate::train::validation_result::ValidationResult;
use crate::{BossMan, BossManError};
use std::fs::File;
use std::path::{Path, PathBuf};
use tracing::debug;

/// The epochs of a run so far.
pub(crate) struct Epochs<'a> {
    file: &'a RunFile,
    validation: Option<Dataset>,
    save: Option<&'a Path>,
    /// The last step after which weights were saved.
    pub(crate) saved: Option<u64>,
    /// The validation with the lowest loss, and its step.
    pub(crate) best: Option<(u64, ValidationResult)>,
    /// The last validation, and its step.
    pub(crate) last: Option<(u64, Score)>,
}

impl<'a> Epochs<'a> {
    /// `best` is the best of the epochs before, if the run resumed.
    pub(crate) fn new(
        file: &'a RunFile,
        validation: Option<Dataset>,
        save: Option<&'a Path>,
        best: Option<(u64, Score)>,
    ) -> Self {
        let best = best.map(|(step, score)| (step, ValidationResult { score, translations: None }));
        Epochs { file, validation, save, saved: None, best, last: None }
    }

    /// An epoch ended with this step, or the run did. Weights that have no room are a warning,
    /// because those of the next epoch take their place.
    ///
    /// # Errors
    /// A worker failed, or the weights of the last step cannot be written.
    pub(crate) async fn end_epoch(
        &mut self,
        boss: &mut BossMan,
        step: u64,
        epoch: u64,
        is_last: bool,
        events: &Events,
    ) -> Result<(), BossManError> {
        debug!(epoch, step, "epoch ends");
        // Weights are saved before validation, which may fail.
        let saved = match self.save_weights(boss, step, events).await {
            Err(error @ BossManError::File { .. }) if !is_last => {
                events.warn_at(step, format!("the weights of step {step} are not saved: {error}"));
                None
            }
            saved => saved?,
        };
        let looked = match &self.validation {
            Some(data) => {
                Some(validate_with_current_members(boss, self.file, Part::Validation, data).await?)
            }
            None => None,
        };
        let best = looked.as_ref().is_some_and(|validation| match &self.best {
            _ if validation.score.loss.is_nan() => false,
            // Also if the best score so far is not a number.
            Some((_, best)) => validation.score.loss < best.score.loss || best.score.loss.is_nan(),
            None => true,
        });
        if let Some((path, mut saved)) = saved.filter(|_| best) {
            let path = best_path(path);
            match atomic_file::copy(&mut saved, &path) {
                Ok(()) => events.report(&saved_event(step, path, best)),
                Err(error) if !is_last => {
                    let weights = format!("the weights of step {step}, the best so far,");
                    events.warn_at(step, format!("{weights} are not saved as such: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        let Some(validation) = looked else { return Ok(()) };
        events.emit(&Event::Validated { step, epoch, validation: validation.clone(), best })?;
        self.last = Some((step, validation.score));
        if best {
            self.best = Some((step, validation));
        }
        Ok(())
    }

    /// Saves the weights after this step, if they have a place. Returns it, and the file, which the
    /// user may move away.
    pub(crate) async fn save_weights(
        &mut self,
        boss: &mut BossMan,
        step: u64,
        events: &Events,
    ) -> Result<Option<(&'a Path, File)>, BossManError> {
        let Some(path) = self.save else { return Ok(None) };
        loop {
            match boss.save_state_dict(path).await {
                Err(error) if boss.recover(&error) => boss.update_membership().await?,
                saved => break saved?,
            }
        }
        let file = File::open(path).map_err(|e| BossManError::io(path, &e))?;
        self.saved = Some(step);
        events.report(&saved_event(step, path.into(), false));
        Ok(Some((path, file)))
    }
}

fn saved_event(step: u64, path: PathBuf, best: bool) -> Event {
    let modified = path.metadata().ok().as_ref().and_then(modified);
    Event::WeightsSaved { step, path, best, modified }
}

/// Validates the model. If a worker leaves during validation, the remaining workers repeat it.
pub(crate) async fn validate_with_current_members(
    boss: &mut BossMan,
    file: &RunFile,
    part: Part,
    data: &Dataset,
) -> Result<ValidationResult, BossManError> {
    loop {
        match validate(boss, file, part, data).await {
            Err(error) if boss.recover(&error) => boss.update_membership().await?,
            other => return other,
        }
    }
}

/// The file for the weights of the best epoch: `w.best.safetensors` beside `w.safetensors`.
pub fn best_path(last: &Path) -> PathBuf {
    let ending =
        last.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    let stem = last.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    last.with_file_name(format!("{stem}.best{ending}"))
}
