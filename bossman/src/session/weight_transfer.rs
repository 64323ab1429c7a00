//! Moves weights from the workers, and to them.

use super::trainer::Trainer;
use crate::data::tensor_payload::{from_payload, to_payload};
use crate::session::fetched_state;
use crate::session::replica_check::{compare_replicas, must_agree};
use crate::weights::state_dict::{expected, ExpectedTensor, StateDict};
use crate::weights::weight_files::WeightFiles;
use crate::BossManError;
use ::data::HashedWeight;
use bytes::Bytes;
use layerspec::DType;
use link::Payload;
use pipeline::boss::{Instruction, SendState};
use pipeline::ids::{Slot, StageId};
use pipeline::{LoadContent, StateForm, TensorMeta};
use std::collections::{BTreeMap, VecDeque};
use tch::Tensor;
use tokio::sync::mpsc;

/// The bytes of weights that a worker reads from its files in one task. A task that takes long
/// looks like a device that hangs.
const READ_BYTES: u64 = 4 << 30;

/// A tensor for the workers that hold a stage.
pub(crate) struct StageTensor {
    pub(crate) stage: StageId,
    pub(crate) name: String,
    pub(crate) payload: Payload,
}

/// Fetches parameters and buffers from the workers.
pub(crate) async fn fetch(trainer: &mut Trainer) -> Result<StateDict, BossManError> {
    if must_agree(trainer) {
        compare_replicas(trainer).await?;
    }
    let mut tensors = BTreeMap::new();
    let layout = trainer.plan.layout();
    let stages: Vec<StageId> = trainer.plan.stages.iter().map(|spec| spec.stage).collect();
    if stages.iter().all(|stage| !layout.shards_parameters(*stage)) {
        fetch_stage(trainer, None, &mut tensors).await?;
        return Ok(StateDict(tensors));
    }
    // Stage by stage, because no worker may have room for all.
    for stage in stages {
        let [gather, reshard] = layout.whole(stage).unwrap_or_default();
        trainer.run_actions(gather).await?;
        let fetched = fetch_stage(trainer, Some(stage), &mut tensors).await;
        trainer.run_actions(reshard).await?;
        fetched?;
    }
    Ok(StateDict(tensors))
}

/// Adds the parameters and buffers of a stage, or of all.
async fn fetch_stage(
    trainer: &Trainer,
    stage: Option<StageId>,
    tensors: &mut BTreeMap<String, Tensor>,
) -> Result<(), BossManError> {
    let form = StateForm::Slices;
    let stream = trainer.handle.fetch(SendState { stage, optimizer: false, form });
    fetched_state::receive(stream, |name, payload| {
        tensors.insert(name.to_string(), from_payload(payload)?);
        Ok(())
    })
    .await
}

/// Replaces parameters and buffers on all workers.
pub(crate) async fn load(
    trainer: &mut Trainer,
    tensors: Vec<StageTensor>,
) -> Result<(), BossManError> {
    trainer.has_loaded = true;
    let tensors = insert_slots(trainer, tensors);
    trainer.call(Instruction::LoadState { tensors, content: LoadContent::Weights }).await
}

/// Replaces those parameters and buffers on all workers that are among these weights, which fit.
pub(crate) async fn load_held(
    trainer: &mut Trainer,
    weights: &StateDict,
) -> Result<(), BossManError> {
    let tensors = placed(trainer, weights.iter())?;
    load(trainer, tensors).await
}

/// As [`load_held`], of weights that are read while others travel.
pub(crate) async fn load_files(
    trainer: &mut Trainer,
    files: &WeightFiles,
) -> Result<(), BossManError> {
    // One chunk waits while another one is read, and a third one travels.
    let (sender, mut chunks) = mpsc::channel(1);
    let files = files.clone();
    let reader = tokio::task::spawn_blocking(move || {
        for pieces in files.chunks() {
            // Nobody waits for a chunk after a failure.
            if sender.blocking_send(files.read(&pieces)?).is_err() {
                break;
            }
        }
        Ok::<(), BossManError>(())
    });
    let holders = Holders::of(trainer);
    while let Some(chunk) = chunks.recv().await {
        let mut tensors = Vec::new();
        for (piece, tensor) in &chunk {
            let sent = piece.state_name();
            tensors.extend(holders.each(&piece.name, &sent, to_payload(tensor)?));
        }
        load(trainer, tensors).await?;
    }
    reader.await.map_err(|e| BossManError::Usage(e.to_string()))?
}

/// As [`load_held`], of weights that each worker reads from its own files.
pub(crate) async fn load_from_workers_files(
    trainer: &mut Trainer,
    weights: &[HashedWeight],
) -> Result<(), BossManError> {
    trainer.has_loaded = true;
    let holders = Holders::of(trainer);
    // Each stage has some weights in each call, so that workers read at the same time.
    let mut queues: BTreeMap<StageId, VecDeque<(u64, StageTensor)>> = BTreeMap::new();
    for weight in weights {
        let bytes: Bytes = weight.encode()?.into();
        let meta = TensorMeta { dtype: DType::UInt8, shape: vec![bytes.len() as u64] };
        let of_weight = weight.source.meta.byte_len().unwrap_or(0);
        for tensor in holders.each(&weight.name, &weight.name, Payload { meta, bytes }) {
            queues.entry(tensor.stage).or_default().push_back((of_weight, tensor));
        }
    }
    while queues.values().any(|queue| !queue.is_empty()) {
        let first = queues.values_mut().flat_map(take_weights).collect();
        let tensors = insert_slots(trainer, first);
        let content = LoadContent::WeightSources;
        trainer.call(Instruction::LoadState { tensors, content }).await?;
    }
    Ok(())
}

/// Takes the first weights of a queue, at most [`READ_BYTES`] of them or one.
fn take_weights(queue: &mut VecDeque<(u64, StageTensor)>) -> Vec<StageTensor> {
    let (mut taken, mut sum) = (Vec::new(), 0u64);
    while let Some((bytes, tensor)) = queue.pop_front() {
        sum = sum.saturating_add(bytes);
        if sum > READ_BYTES && !taken.is_empty() {
            queue.push_front((bytes, tensor));
            break;
        }
        taken.push(tensor);
    }
    taken
}

/// Puts tensors into slots, from which they are sent.
pub(crate) fn insert_slots(
    trainer: &Trainer,
    tensors: Vec<StageTensor>,
) -> Vec<(StageId, String, Slot)> {
    tensors
        .into_iter()
        .map(|tensor| (tensor.stage, tensor.name, trainer.handle.slots.insert(tensor.payload)))
        .collect()
}

/// Each tensor once for each stage that holds it. The replicas of the stage pass it on.
///
/// # Errors
/// Tensors are missing, unknown or misshapen; all are listed.
pub(crate) fn by_stage(
    trainer: &Trainer,
    weights: &StateDict,
) -> Result<Vec<StageTensor>, BossManError> {
    let fitting = weights.fit_to(trainer.model.graph())?;
    placed(trainer, fitting.iter())
}

/// As [`by_stage`], of tensors that fit.
fn placed<'a>(
    trainer: &Trainer,
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
) -> Result<Vec<StageTensor>, BossManError> {
    let holders = Holders::of(trainer);
    let mut placed = Vec::new();
    for (name, tensor) in tensors {
        placed.extend(holders.each(name, name, to_payload(tensor)?));
    }
    Ok(placed)
}

/// The stages that hold each parameter and buffer.
struct Holders(BTreeMap<String, Vec<StageId>>);

impl Holders {
    fn of(trainer: &Trainer) -> Self {
        let stages =
            |ExpectedTensor { layer, parameter, .. }| trainer.plan.holders(layer, parameter);
        let expected = expected(trainer.model.graph()).owned.into_iter();
        Holders(expected.map(|(name, tensor)| (name, stages(tensor))).collect())
    }

    /// The payload, under the name `sent`, for each stage that holds the parameter `name`.
    fn each(&self, name: &str, sent: &str, payload: Payload) -> Vec<StageTensor> {
        let tensor = |stage: &StageId| StageTensor {
            stage: *stage,
            name: sent.into(),
            payload: payload.clone(),
        };
        self.0.get(name).into_iter().flatten().map(tensor).collect()
    }
}
