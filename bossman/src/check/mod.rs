//! Checks the data of a run against its model and its loss, before anything waits for a worker.
//!
//! ```text
//! RunFile::check_data, train, plan, eval -> check
//!     |-> batch_sizes     the sizes of the first batch against every layer
//!     |-> output_shape    the loss against the model's first output and the shape of targets
//!     +-> target_values   the values of the first targets and of the last one
//! train, bossman check -> run_length   settings that need more samples, steps or microbatches
//! train -> lone_samples   microbatches of one sample against layers that normalise over them
//! bossman check -> dry_run   the first samples, and the layers of each worker
//! ```

mod batch_sizes;
mod dry_run;
pub(crate) mod lone_samples;
mod output_shape;
mod run_length;
mod target_values;
#[cfg(test)]
mod tests;

use crate::data::{Dataset, Part};
use crate::run_file::data_parts::Parts;
use crate::run_file::RunFile;
use crate::{BossManError, Model};
use serde::Serialize;
use std::fmt;

/// The samples at the beginning of each part that are checked.
const FIRST_SAMPLES: u64 = 1000;
/// The samples whose inputs are read at once.
const SAMPLES_AT_ONCE: usize = 32;

/// The number of samples in each part of a run's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DataSizes {
    /// The samples to train on.
    pub train: u64,
    /// The samples for validation after each epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<u64>,
    /// The samples for the test at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<u64>,
}

impl fmt::Display for DataSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples to train on", self.train)?;
        self.validation.map_or(Ok(()), |samples| write!(f, ", {samples} to validate"))?;
        self.test.map_or(Ok(()), |samples| write!(f, ", {samples} to test"))
    }
}

/// The samples of each part of a run's data that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// The first 1,000 and the last one.
    FirstAndLast,
    /// Every one.
    All,
}

impl RunFile {
    /// Opens all of the run's data and checks it against the model and the loss. It reads inputs
    /// and targets of these samples.
    ///
    /// # Errors
    /// A file cannot be read, the loss does not fit the model's first output, a layer does not take
    /// a batch, or a target is outside the range that the loss takes.
    pub fn check_data(&self, model: &Model, samples: Samples) -> Result<DataSizes, BossManError> {
        let file = self.clone().with_data_at_boss();
        let parts = file.parts(model)?;
        for data in parts.iter() {
            file.check_part(model, data, samples)?;
            read_inputs(data, samples)?;
        }
        Ok(DataSizes {
            train: parts.train.samples(),
            validation: parts.validation.as_ref().map(Dataset::samples),
            test: parts.test.as_ref().map(Dataset::samples),
        })
    }

    /// Opens one part as [`RunFile::part`], and checks its first targets and the last one.
    ///
    /// # Errors
    /// Those of [`RunFile::part`] and [`RunFile::check_data`].
    pub fn checked_part(&self, part: Part, model: &Model) -> Result<Dataset, BossManError> {
        let data = self.part(part, model)?;
        self.check_part(model, &data, Samples::FirstAndLast)?;
        Ok(data)
    }

    /// Opens all of the run's data as [`RunFile::parts`], and checks the first targets of each part
    /// and the last one.
    pub(crate) fn checked_parts(&self, model: &Model) -> Result<Parts, BossManError> {
        let parts = self.parts(model)?;
        parts.iter().try_for_each(|data| self.check_part(model, data, Samples::FirstAndLast))?;
        Ok(parts)
    }

    fn check_part(
        &self,
        model: &Model,
        data: &Dataset,
        samples: Samples,
    ) -> Result<(), BossManError> {
        batch_sizes::check(self, model.graph(), data)?;
        output_shape::check(&self.loss, model.graph(), data)
            .map_err(|problem| self.loss_place.error(problem))?;
        let names = self.data.as_ref().and_then(|data| data.train.class_names().ok()?);
        target_values::check(&self.loss, model.graph(), data, names.as_deref(), samples)
    }
}

/// Reads inputs, which finds what a file hides: a broken picture, NaN.
fn read_inputs(data: &Dataset, samples: Samples) -> Result<(), BossManError> {
    let all = data.samples();
    let first = if samples == Samples::All { all } else { all.min(FIRST_SAMPLES) };
    let last = (first < all).then(|| all - 1);
    let numbers: Vec<i64> = (0..first).chain(last).map(|number| number as i64).collect();
    numbers.chunks(SAMPLES_AT_ONCE).try_for_each(|batch| Ok(data.inputs(batch).map(drop)?))
}
