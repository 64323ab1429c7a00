//! Samples from files of this worker.

use crate::compute::failures::tensor_failure;
use crate::compute::payloads::to_payload;
use data::Dataset;
use layerspec::ValueId;
use link::Payload;
use pipeline::message::Failure;
use pipeline::samples::{Column, DataId, DataSpec, Reading};
use runtime::SampleReader;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// More data sets than a run has: one each to train, to validate and to test.
const MAX_OPEN_DATASETS: usize = 16;

/// The data sets below the folder that the worker's owner named. Other files are never read, even
/// if the boss asks for them.
pub(crate) struct LocalSamples {
    folder: Option<PathBuf>,
    open: BTreeMap<DataId, OpenDataset>,
}

struct OpenDataset {
    data: Dataset,
    /// The model's inputs, in the order of the data's columns.
    inputs: Vec<ValueId>,
}

impl LocalSamples {
    pub(crate) fn in_folder(folder: Option<PathBuf>) -> Self {
        LocalSamples { folder, open: BTreeMap::new() }
    }

    fn column(&self, reading: &Reading, column: Column) -> Result<Payload, Failure> {
        let Reading { batch, part, .. } = reading;
        let unknown = || Failure::new(format!("{} is not open here", reading.data));
        let OpenDataset { data, inputs } = self.open.get(&reading.data).ok_or_else(unknown)?;
        let tensor = match column {
            Column::Target => data.target(batch, part.clone()),
            Column::Input(value) => {
                let place = inputs.iter().position(|input| *input == value);
                let place = place
                    .ok_or_else(|| Failure::new(format!("{} has no such input", reading.data)))?;
                data.input(place, batch, part.clone())
            }
        };
        to_payload(&tensor.map_err(|e| Failure::new(e.to_string()))?).map_err(tensor_failure)
    }
}

impl SampleReader for LocalSamples {
    fn open(&mut self, spec: DataSpec) -> Result<(), Failure> {
        let Some(folder) = &self.folder else {
            return Err(Failure::new(
                "the run has `on: workers` in its data, but this worker was not told where its \
                 files are; start it with --data FOLDER",
            ));
        };
        let DataSpec { id, description, inputs } = spec;
        if self.open.contains_key(&id) {
            return Ok(());
        }
        if self.open.len() >= MAX_OPEN_DATASETS {
            return Err(Failure::new(format!("{MAX_OPEN_DATASETS} data sets are open already")));
        }
        let data = Dataset::from_description(&description, id, folder)
            .map_err(|e| Failure::new(e.to_string()))?;
        self.open.insert(id, OpenDataset { data, inputs });
        Ok(())
    }

    fn read(&mut self, reading: &Reading) -> Result<Vec<Payload>, Failure> {
        let mut payloads: Vec<Payload> = Vec::new();
        let mut last = None;
        for column in &reading.columns {
            let payload = match (payloads.last(), last == Some(*column)) {
                (Some(same), true) => same.clone(),
                _ => self.column(reading, *column)?,
            };
            payloads.push(payload);
            last = Some(*column);
        }
        Ok(payloads)
    }
}
