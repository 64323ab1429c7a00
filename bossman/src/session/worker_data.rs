//! Data that workers read from files of their own.

use crate::data::{Contents, Dataset};
use crate::{Batch, BossMan, BossManError};
use pipeline::boss::Request;
use pipeline::samples::{DataSpec, Samples};
use std::collections::BTreeSet;

/// The data sets that workers have opened.
#[derive(Debug, Default, Clone)]
pub(crate) struct WorkerDataSets {
    specs: Vec<DataSpec>,
    /// So many of them all workers that take samples have open.
    opened: usize,
}

impl WorkerDataSets {
    pub(crate) fn specs(&self) -> &[DataSpec] {
        &self.specs
    }

    /// Workers have other stages now, and those that take samples may be others.
    pub(crate) fn reset_opened(&mut self) {
        self.opened = 0;
    }
}

impl BossMan {
    /// Has the workers that take samples open a data set among their own files ([`Dataset::for_workers`]). Batches of a data
    /// set that is not open yet open it, too; this way errors come before training.
    ///
    /// # Errors
    /// A worker was started without `--data`, or its files are missing or others than here.
    pub async fn open_data(&mut self, data: &Dataset) -> Result<(), BossManError> {
        let spec = data.spec(self.model.graph());
        self.register(spec.ok_or_else(|| {
            BossManError::Usage("open_data: workers read no data but that of Dataset::for_workers".into())
        })?)?;
        self.open_registered_data().await
    }

    /// Notes the data set that a batch is of, where workers read it.
    pub(crate) fn register_data_of(&mut self, batch: &Batch) -> Result<(), BossManError> {
        let Contents::Indices(numbers) = batch.contents() else { return Ok(()) };
        numbers.data.spec(self.model.graph()).map_or(Ok(()), |spec| self.register(spec))
    }

    fn register(&mut self, spec: DataSpec) -> Result<(), BossManError> {
        if self.open_data.specs.iter().any(|known| known.id == spec.id) {
            return Ok(());
        }
        self.refuse_in_pool("open_data")?;
        self.open_data.specs.push(spec);
        Ok(())
    }

    /// Tells the workers of data sets that they have not heard of.
    pub(crate) async fn open_registered_data(&mut self) -> Result<(), BossManError> {
        while let Some(spec) = self.open_data.specs.get(self.open_data.opened).cloned() {
            if let Err(error) = self.call(Request::OpenData(Box::new(spec))).await {
                // Whoever wants it again says so; nothing else needs it. Where workers were lost, others are told.
                if !error.workers_were_lost() {
                    self.open_data.specs.remove(self.open_data.opened);
                }
                return Err(error);
            }
            self.open_data.opened += 1;
        }
        Ok(())
    }
}

/// The samples of a round over several whole batches; nothing where the boss sends them.
pub(crate) fn merge_samples(batches: Vec<Option<Samples>>) -> Result<Option<Samples>, BossManError> {
    let all = batches.len();
    let read: Vec<Samples> = batches.into_iter().flatten().collect();
    let of: BTreeSet<_> = read.iter().map(|samples| samples.data).collect();
    match of.first() {
        None => Ok(None),
        Some(data) if of.len() == 1 && read.len() == all => {
            let batches = read.into_iter().flat_map(|samples| samples.batches).collect();
            Ok(Some(Samples { data: *data, batches, next: Vec::new() }))
        }
        Some(_) => Err(BossManError::Usage("batches that are evaluated at once are of different data".into())),
    }
}
