//! The parts of a run's data, opened.

use super::{RunFile, Validation};
use crate::data::{Batches, Dataset, Source, TextPairs};
use crate::{BossManError, Model};

/// The parts of a run's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The samples to train on.
    Train,
    /// The samples for validation after each epoch.
    Validation,
    /// The samples for the test at the end.
    Test,
}

/// A run's data, opened.
pub(crate) struct Parts {
    pub(crate) train: Dataset,
    pub(crate) validation: Option<Dataset>,
    pub(crate) test: Option<Dataset>,
}

impl Parts {
    /// The parts that the run has.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Dataset> {
        [Some(&self.train), self.validation.as_ref(), self.test.as_ref()].into_iter().flatten()
    }
}

impl RunFile {
    /// Opens all of the run's data.
    pub(crate) fn parts(&self, model: &Model) -> Result<Parts, BossManError> {
        let open = |source: &Source| self.open(source, model);
        let whole = open(&self.data.train)?;
        let (train, validation) = match &self.data.validation {
            None => (whole, None),
            Some(Validation::Source(source)) => (whole, Some(open(source)?)),
            Some(Validation::Split(share)) => {
                let (train, validation) = whole.split(*share, self.seed)?;
                (train, Some(validation))
            }
        };
        let test = self.data.test.as_ref().map(open).transpose()?;
        Ok(Parts { train, validation, test })
    }

    /// The batches after `done` steps.
    pub(crate) fn batches(&self, train: Dataset, done: u64) -> Batches {
        let seed = self.shuffle.then_some(self.seed);
        Batches::after(train, self.batch_size, seed, done).grouped_by_length(self.group_by_length)
    }

    /// Opens one part.
    ///
    /// # Errors
    /// The run has no such part; a file cannot be read or does not fit the model.
    pub fn part(&self, part: Part, model: &Model) -> Result<Dataset, BossManError> {
        let missing =
            |what: &str| BossManError::Usage(format!("the run file's `data` has no `{what}`"));
        match (part, &self.data.validation) {
            (Part::Test, _) => {
                self.open(self.data.test.as_ref().ok_or_else(|| missing("test"))?, model)
            }
            (Part::Validation, None) => Err(missing("validation")),
            (Part::Validation, Some(Validation::Source(source))) => self.open(source, model),
            (Part::Train, Some(Validation::Split(share))) => {
                Ok(self.open(&self.data.train, model)?.split(*share, self.seed)?.0)
            }
            (Part::Validation, Some(Validation::Split(share))) => {
                Ok(self.open(&self.data.train, model)?.split(*share, self.seed)?.1)
            }
            (Part::Train, _) => self.open(&self.data.train, model),
        }
    }

    fn open(&self, source: &Source, model: &Model) -> Result<Dataset, BossManError> {
        let data = Dataset::open(source, model.graph(), &self.loss, self.data.normalize.as_ref())?;
        match &self.data.on_workers {
            Some(folder) => Ok(data.for_workers(folder)?),
            None => Ok(data),
        }
    }

    /// The texts behind a part whose samples are pairs of them.
    pub(crate) fn pairs(&self, part: Part) -> Option<&TextPairs> {
        let source = match (part, &self.data.validation) {
            (Part::Test, _) => self.data.test.as_ref()?,
            (Part::Validation, None) => return None,
            (Part::Validation, Some(Validation::Source(source))) => source.as_ref(),
            (Part::Train, _) | (Part::Validation, Some(Validation::Split(_))) => &self.data.train,
        };
        match source {
            Source::Pairs(texts) => Some(texts),
            _ => None,
        }
    }
}
