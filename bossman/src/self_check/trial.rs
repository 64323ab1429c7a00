//! A run of a self-check, as `bossman train` does it.

use crate::events::Events;
use crate::fleet::FleetSettings;
use crate::run_file::RunFile;
use crate::train::{self, TrainOptions};
use crate::{BossManError, StepReport};

/// Trains on workers of this machine, and returns the steps.
///
/// # Errors
/// As for [`train::run`].
pub(super) async fn train(
    file: &RunFile,
    fleet: FleetSettings,
) -> Result<Vec<StepReport>, BossManError> {
    train_with(file, &options(fleet)).await
}

/// Trains with these options.
///
/// # Errors
/// As for [`train::run`].
pub(super) async fn train_with(
    file: &RunFile,
    options: &TrainOptions,
) -> Result<Vec<StepReport>, BossManError> {
    let mut steps = Vec::new();
    train::run_with(file, options, |report| steps.push(*report)).await?;
    Ok(steps)
}

/// The options of a run that shows and keeps nothing.
pub(super) fn options(fleet: FleetSettings) -> TrainOptions {
    TrainOptions { fleet, events: Events::unobserved(), ..TrainOptions::default() }
}

/// The median of the times of the steps after the first ones, in seconds. 0 for none.
pub(super) fn median_seconds(steps: &[StepReport], first: usize) -> f64 {
    let mut times: Vec<f64> =
        steps.iter().skip(first).map(|report| report.time.as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}
