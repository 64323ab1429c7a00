//! Tables as people have them: columns of numbers and of texts by name, from CSV or Parquet.
//!
//! ```text
//! ColumnsSource (path, spec, learned) -> rows (CSV, Parquet) -> learned: kinds, categories, means
//!                                            |                      |
//!                                            +--> encode <----------+--> columns of the model
//! ```

mod encode;
mod learned;
mod rows;
mod spec;
#[cfg(test)]
mod tests;

pub use learned::{LearnedColumn, LearnedTable};
pub use spec::{ColumnsSpec, InputColumns, Missing, TargetColumn, Transform};

use crate::column::Columns;
use crate::endings::ends;
use crate::expected_tensor::ExpectedTensor;
use crate::DataError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A table, the use of its columns, and what was learned from the table to train on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnsSource {
    /// The file: `.csv`, `.csv.gz` or `.parquet`.
    pub path: PathBuf,
    /// The use of its columns.
    pub spec: ColumnsSpec,
    /// What was learned. `None`: this is the table to learn from.
    pub learned: Option<LearnedTable>,
}

impl ColumnsSource {
    /// Whether a file can be such a table, by its name.
    pub fn is_table(path: &Path) -> bool {
        ends(path, &[".csv", ".csv.gz", ".tsv", ".parquet"])
    }

    /// Learns from all rows of the table.
    ///
    /// # Errors
    /// The file cannot be read, lacks a column, or has a value that cannot be used. The error names
    /// line and column.
    pub fn learn(&self) -> Result<LearnedTable, DataError> {
        match &self.learned {
            Some(learned) => Ok(learned.clone()),
            None => learned::learn(&self.path, &self.spec),
        }
    }

    /// The values of the column that names rows, one for each row, if there is such a column.
    ///
    /// # Errors
    /// The file cannot be read, or lacks the column.
    pub fn ids(&self) -> Result<Option<Vec<String>>, DataError> {
        let Some(id) = &self.spec.id else { return Ok(None) };
        let mut ids = Vec::new();
        rows::read(&self.path, &[id], &mut |row: rows::Row<'_>| {
            ids.push(row.first().trim().to_string());
            Ok(())
        })?;
        Ok(Some(ids))
    }

    /// The line of a sample, if the file has lines and can be read again.
    pub(crate) fn line_of(&self, sample: i64) -> Option<u64> {
        rows::line_of(&self.path, sample)
    }

    /// The names of the classes, if the target is a column of texts.
    pub(crate) fn class_names(&self) -> Option<Vec<String>> {
        match self.learned.as_ref()?.columns.get(&self.spec.target.column)? {
            LearnedColumn::Text { categories, .. } => Some(categories.clone()),
            LearnedColumn::Number { .. } => None,
        }
    }

    pub(crate) fn open(
        &self,
        inputs: &[ExpectedTensor],
        target: Option<&ExpectedTensor>,
    ) -> Result<Columns, DataError> {
        encode::open(&self.path, &self.spec, &self.learn()?, inputs, target)
    }
}
