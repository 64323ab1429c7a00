//! Checks the data of a run against its model and its loss, before anything waits for a worker.
//!
//! ```text
//! RunFile::check_data, train, plan, eval -> check
//!     |-> output_shape    the loss against the model's first output and the shape of targets
//!     +-> target_values   the values of the first targets and of the last one
//! ```

mod output_shape;
mod target_values;
#[cfg(test)]
mod tests;

use crate::data::{Dataset, Part};
use crate::run_file::data_parts::Parts;
use crate::run_file::RunFile;
use crate::{BossManError, Model};
use serde::Serialize;
use std::fmt;

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

impl RunFile {
    /// Opens all of the run's data and checks it against the model and the loss. It reads the first
    /// 1,000 targets of each part and the last one.
    ///
    /// # Errors
    /// A file cannot be read, the loss does not fit the model's first output, or a target is
    /// outside the range that the loss takes.
    pub fn check_data(&self, model: &Model) -> Result<DataSizes, BossManError> {
        let parts = self.checked_parts(model)?;
        Ok(DataSizes {
            train: parts.train.samples(),
            validation: parts.validation.as_ref().map(Dataset::samples),
            test: parts.test.as_ref().map(Dataset::samples),
        })
    }

    /// Opens one part as [`RunFile::part`], and checks it as [`RunFile::check_data`].
    ///
    /// # Errors
    /// Those of both.
    pub fn checked_part(&self, part: Part, model: &Model) -> Result<Dataset, BossManError> {
        let data = self.part(part, model)?;
        check(self, model, &data)?;
        Ok(data)
    }

    /// Opens all of the run's data as [`RunFile::parts`], and checks it.
    pub(crate) fn checked_parts(&self, model: &Model) -> Result<Parts, BossManError> {
        let parts = self.parts(model)?;
        [Some(&parts.train), parts.validation.as_ref(), parts.test.as_ref()]
            .into_iter()
            .flatten()
            .try_for_each(|data| check(self, model, data))?;
        Ok(parts)
    }
}

fn check(file: &RunFile, model: &Model, data: &Dataset) -> Result<(), BossManError> {
    output_shape::check(&file.loss, model.graph(), data)
        .map_err(|problem| BossManError::file(&file.model, problem))?;
    target_values::check(&file.loss, model.graph(), data)
}
