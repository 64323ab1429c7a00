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
        let learned = self.learned()?;
        let open = |source: &Source| learned.open(source, model);
        let data = learned.data()?;
        let whole = open(&data.train)?;
        let (train, validation) = match &data.validation {
            None => (whole, None),
            Some(Validation::Source(source)) => (whole, Some(open(source)?)),
            Some(Validation::Split(share)) => {
                let (train, validation) = whole.split(*share, self.seed)?;
                (train, Some(validation))
            }
        };
        let test = data.test.as_ref().map(open).transpose()?;
        Ok(Parts { train, validation, test })
    }

    /// The source of a part. That of a share of the samples to train on is theirs.
    pub fn source(&self, part: Part) -> Option<&Source> {
        let data = self.data.as_ref()?;
        match (part, &data.validation) {
            (Part::Test, _) => data.test.as_ref(),
            (Part::Validation, None) => None,
            (Part::Validation, Some(Validation::Source(source))) => Some(source),
            (Part::Train, _) | (Part::Validation, Some(Validation::Split(_))) => Some(&data.train),
        }
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
        let missing = |what: &str, other: &str| {
            BossManError::Usage(format!(
                "the run file's `data` has no `{what}`; add it, or use --data {other}"
            ))
        };
        let learned = self.learned()?;
        let (data, open) = (learned.data()?, |source: &Source| learned.open(source, model));
        match (part, &data.validation) {
            (Part::Test, validation) => {
                let other = if validation.is_some() { "validation" } else { "train" };
                open(data.test.as_ref().ok_or_else(|| missing("test", other))?)
            }
            (Part::Validation, None) => Err(missing("validation", "train")),
            (Part::Validation, Some(Validation::Source(source))) => open(source),
            (Part::Train, Some(Validation::Split(share))) => {
                Ok(open(&data.train)?.split(*share, self.seed)?.0)
            }
            (Part::Validation, Some(Validation::Split(share))) => {
                Ok(open(&data.train)?.split(*share, self.seed)?.1)
            }
            (Part::Train, _) => open(&data.train),
        }
    }

    /// The same run, with what its data to train on tells about every part: the contents of a
    /// table, or the classes of pictures.
    ///
    /// # Errors
    /// The data to train on cannot be read, or the classes of a part contradict it.
    pub(crate) fn learned(&self) -> Result<RunFile, BossManError> {
        let run = match self.learned_table()? {
            Some(learned) => self.clone().with_learned_table(&learned),
            None => self.clone(),
        };
        run.with_class_names()
    }

    fn open(&self, source: &Source, model: &Model) -> Result<Dataset, BossManError> {
        let data = self.data()?;
        let opened = Dataset::open(source, model.graph(), &self.loss, data.normalize.as_ref())?;
        match &data.on_workers {
            Some(folder) => Ok(opened.for_workers(folder)?),
            None => Ok(opened),
        }
    }

    /// The texts behind a part whose samples are pairs of them.
    pub(crate) fn pairs(&self, part: Part) -> Option<&TextPairs> {
        match self.source(part)? {
            Source::Pairs(texts) => Some(texts),
            _ => None,
        }
    }
}
