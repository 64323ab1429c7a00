//! Data that workers read from their own files.

use crate::BossManError;
use pipeline::boss::Instruction;
use pipeline::samples::{DataSpec, Samples};
use runtime::Handle;
use std::collections::BTreeSet;

/// The data sets that workers read.
#[derive(Debug, Default, Clone)]
pub(crate) struct WorkerDataSets {
    specs: Vec<DataSpec>,
    /// The number of them, from the first, that all workers have open that take samples.
    opened: usize,
}

impl WorkerDataSets {
    pub(crate) fn specs(&self) -> &[DataSpec] {
        &self.specs
    }

    pub(crate) fn contains(&self, spec: &DataSpec) -> bool {
        self.specs.iter().any(|known| known.id == spec.id)
    }

    /// Adds a data set, which is not yet open.
    pub(crate) fn register(&mut self, spec: DataSpec) {
        self.specs.push(spec);
    }

    /// Marks all data sets as not open, because other workers may take samples now.
    pub(crate) fn reset_opened(&mut self) {
        self.opened = 0;
    }

    /// Tells the workers of data sets that are not open.
    ///
    /// # Errors
    /// A worker lacks the files or is not allowed to read them. It then no longer counts as
    /// registered, unless workers were lost: others are told after the loss.
    pub(crate) async fn open(&mut self, handle: &Handle) -> Result<(), BossManError> {
        while let Some(spec) = self.specs.get(self.opened).cloned() {
            if let Err(failure) = handle.call(Instruction::OpenData(Box::new(spec))).await {
                let error = BossManError::from(failure);
                if !error.workers_were_lost() {
                    self.specs.remove(self.opened);
                }
                return Err(error);
            }
            self.opened += 1;
        }
        Ok(())
    }
}

/// The samples of a round over several whole batches. `None` if the boss sends them.
pub(crate) fn merge_samples(
    batches: Vec<Option<Samples>>,
) -> Result<Option<Samples>, BossManError> {
    let all = batches.len();
    let read: Vec<Samples> = batches.into_iter().flatten().collect();
    let of: BTreeSet<_> = read.iter().map(|samples| samples.data).collect();
    match of.first() {
        None => Ok(None),
        Some(data) if of.len() == 1 && read.len() == all => {
            let batches = read.into_iter().flat_map(|samples| samples.batches).collect();
            Ok(Some(Samples { data: *data, batches, next: Vec::new() }))
        }
        Some(_) => Err(BossManError::Usage(
            "batches that are evaluated at once are of different data".into(),
        )),
    }
}
