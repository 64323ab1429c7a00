//! Where weights go that workers send.

use super::fetched_state;
use super::transfer_meter::TransferMeter;
use crate::checkpoint::WeightsFile;
use crate::data::tensor_payload::owned_from_payload;
use crate::{BossManError, StateDict};
use runtime::StateStream;
use std::collections::BTreeMap;
use tch::Tensor;

/// The receiver of weights.
pub(crate) enum WeightsSink {
    /// Whole tensors in memory.
    Memory(BTreeMap<String, Tensor>),
    /// A file. `None` after an error.
    File(Option<Box<WeightsFile>>),
}

impl WeightsSink {
    /// Receives weights until all have come.
    ///
    /// # Errors
    /// A worker failed or sent something else, or the file cannot be written.
    pub(super) async fn receive(
        &mut self,
        stream: StateStream,
        meter: &TransferMeter,
    ) -> Result<(), BossManError> {
        match self {
            WeightsSink::Memory(tensors) => {
                fetched_state::receive(stream, |name, payload| {
                    meter.add(payload.bytes.len() as u64);
                    tensors.insert(name.to_string(), owned_from_payload(payload)?);
                    Ok(())
                })
                .await
            }
            WeightsSink::File(file) => receive_into(file, stream, meter).await,
        }
    }

    /// The weights in memory. A file gets its name instead.
    ///
    /// # Errors
    /// The file is not whole, or cannot be written.
    pub(super) async fn finish(self) -> Result<StateDict, BossManError> {
        match self {
            WeightsSink::Memory(tensors) => Ok(StateDict(tensors)),
            WeightsSink::File(file) => {
                let file = file.ok_or_else(broken)?;
                blocking(move || file.finish()).await?;
                Ok(StateDict::default())
            }
        }
    }
}

async fn receive_into(
    file: &mut Option<Box<WeightsFile>>,
    mut stream: StateStream,
    meter: &TransferMeter,
) -> Result<(), BossManError> {
    stream.heads().await?;
    while let Some(part) = stream.next().await? {
        let bytes = part.payload.bytes.len() as u64;
        let mut open = file.take().ok_or_else(broken)?;
        let add = move || open.add(&part.name, &part.payload).map(|()| open);
        *file = Some(blocking(add).await?);
        meter.add(bytes);
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BossManError> + Send + 'static,
) -> Result<T, BossManError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| BossManError::Usage(format!("writing weights: {e}")))?
}

fn broken() -> BossManError {
    BossManError::Usage("weights cannot be written, because an earlier part was not".into())
}
