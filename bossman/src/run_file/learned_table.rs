//! What a run learns from its table: kept in the run's folder, and used for every later table.

use super::data::{Data, Validation};
use super::RunFile;
use crate::data::{ColumnsSource, ColumnsSpec, LearnedTable, Source};
use crate::BossManError;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

impl Data {
    /// The use of columns, if the data is a table.
    pub fn columns(&self) -> Option<&ColumnsSpec> {
        match &self.train {
            Source::Columns(of) => Some(&of.spec),
            _ => None,
        }
    }

    fn tables(&mut self) -> impl Iterator<Item = &mut ColumnsSource> {
        let validation = match &mut self.validation {
            Some(Validation::Source(source)) => Some(source.as_mut()),
            _ => None,
        };
        let sources = [Some(&mut self.train), validation, self.test.as_mut()];
        sources.into_iter().flatten().filter_map(|source| match source {
            Source::Columns(of) => Some(of.as_mut()),
            _ => None,
        })
    }
}

/// The file of a run's folder with what was learned from its table.
pub(crate) const TABLE: &str = "table.json";
/// The largest such file.
const MAX_BYTES: u64 = 256 << 20;

impl RunFile {
    /// The same run, with what an earlier run in this folder learned from its table, if it did.
    pub(super) fn with_table_of(self, folder: &Path) -> Result<Self, BossManError> {
        let path = folder.join(TABLE);
        if self.data.as_ref().and_then(Data::columns).is_none() || !path.is_file() {
            return Ok(self);
        }
        let mut text = Vec::new();
        let file = File::open(&path).map_err(|e| BossManError::io(&path, &e))?;
        file.take(MAX_BYTES).read_to_end(&mut text).map_err(|e| BossManError::io(&path, &e))?;
        let learned = serde_json::from_slice(&text).map_err(|e| BossManError::file(&path, e))?;
        Ok(self.with_learned_table(&learned))
    }

    /// What was learned from the table to train on. It is read, unless it is known. `None` if the
    /// data is no table.
    ///
    /// # Errors
    /// The table cannot be read.
    pub fn learned_table(&self) -> Result<Option<LearnedTable>, BossManError> {
        match self.data.as_ref().map(|data| &data.train) {
            Some(Source::Columns(of)) => Ok(Some(of.learn()?)),
            _ => Ok(None),
        }
    }

    /// A file of samples for predictions. It is read as the data to train on is, if it has the same
    /// format.
    pub fn source_like_train(&self, path: PathBuf) -> Source {
        let train = self.data.as_ref().map(|data| &data.train);
        train.and_then(|train| train.of_file(&path)).unwrap_or(Source::File(path))
    }

    /// The same run, whose tables are read by what was learned before.
    #[must_use]
    pub fn with_learned_table(mut self, learned: &LearnedTable) -> Self {
        if let Some(data) = &mut self.data {
            data.tables().for_each(|table| table.learned = Some(learned.clone()));
        }
        self
    }
}
