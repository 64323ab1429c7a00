//! A training run as `bossman train` does it: data, steps, validation after each epoch, metrics,
//! weights, a test.

use crate::events::{Event, Events};
use crate::output::printable;
use crate::run_file::RunFile;
use crate::runs::is_run_folder;
use crate::train::attempts::{AttemptEnd, Attempts};
use crate::train::outcome::Outcome;
use crate::train::outputs;
use crate::train::placed;
use crate::train::prepared::{prepare, Prepared};
use crate::train::receipt_writer::ReceiptWriter;
use crate::train::settings::TrainOptions;
use crate::{BossManError, StepReport};

/// The most characters of the reason that workers are told.
const REASON: usize = 500;

/// Trains as a run file says. Files, data and cuts are checked before any worker is waited for.
///
/// # Errors
/// Anything in the files, the workers or the network; see [`BossManError`].
pub async fn run(file: &RunFile, settings: &TrainOptions) -> Result<Outcome, BossManError> {
    run_with(file, settings, |_| {}).await
}

/// As [`run`], and calls `on_step` after every step, repeated steps after a loss included.
///
/// # Errors
/// As for [`run`].
pub async fn run_with(
    file: &RunFile,
    settings: &TrainOptions,
    mut on_step: impl FnMut(&StepReport),
) -> Result<Outcome, BossManError> {
    file.data()?;
    let (mut file, mut settings) = (file.learned()?, settings.clone());
    file.shuffle &= !settings.no_shuffle;
    outputs::check(&file, &settings)?;
    let folder = placed::open_folder(&file, &settings)?;
    // A mistake leaves no folder.
    let discard = |_: &BossManError| folder.iter().for_each(|folder| folder.discard());
    if let Some(folder) = &folder {
        placed::place(folder, &mut file, &mut settings).inspect_err(discard)?;
    }
    let (prepared, start) = prepare(&file, &settings).await.inspect_err(discard)?;
    let mut attempts = Attempts::new(&prepared, start).inspect_err(discard)?;
    if let Some(folder) = &folder {
        let path = folder.path().to_path_buf();
        attempts.events().report(&Event::Folder { path });
    }
    let events = attempts.events().clone();
    let receipt = folder.clone().map(|folder| ReceiptWriter::start(folder, &prepared, events));
    let outcome = attempt_until_done(&mut attempts, &prepared, &mut on_step).await;
    let never_began = folder.as_ref().is_some_and(|folder| !is_run_folder(folder.path()));
    match (&outcome, receipt) {
        // As a port in use: no worker could join.
        (Err(error @ BossManError::Link(_)), _) if never_began => discard(error),
        (_, Some(receipt)) => {
            receipt.write(outcome.as_ref().is_ok_and(|of| of.interrupted.is_none())).await;
        }
        _ => {}
    }
    if let (Some(handle), Some(why)) = (&attempts.handle, why_it_ended_early(&outcome)) {
        handle.leave(&why).await;
    }
    outcome
}

/// The reason that workers print if a run ended before its last step.
fn why_it_ended_early(outcome: &Result<Outcome, BossManError>) -> Option<String> {
    match outcome {
        Ok(outcome) => outcome.interrupted.as_ref().map(|_| "the run was interrupted".into()),
        Err(error) => Some(format!("the run failed: {}", printable(&error.to_string(), REASON))),
    }
}

/// Trains to the end, also after losses of workers, and with workers that come late.
async fn attempt_until_done(
    attempts: &mut Attempts,
    prepared: &Prepared<'_>,
    on_step: &mut impl FnMut(&StepReport),
) -> Result<Outcome, BossManError> {
    let mut unfinished = Unfinished(Some(attempts.events().clone()));
    loop {
        let error = match attempts.attempt(prepared, on_step).await {
            Ok(AttemptEnd::Done(outcome)) => {
                unfinished.0 = None;
                return Ok(*outcome);
            }
            Ok(AttemptEnd::Grows) => continue,
            Err(error) => error,
        };
        if let Err(error) = attempts.recover(prepared, error) {
            unfinished.0 = None;
            attempts.report_end(attempts.furthest_step(), Some(&error)).ok();
            return Err(error);
        }
    }
}

/// Reports that the run was interrupted, if its future is dropped before its end.
struct Unfinished(Option<Events>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(events) = &self.0 {
            let (weights, checkpoint) = (None, None);
            events.report(&Event::Interrupted { step: None, weights, checkpoint });
        }
    }
}
