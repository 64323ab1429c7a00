//! Moves weights from the workers, and to them.

use super::trainer::Trainer;
use super::transfer_meter::TransferMeter;
use super::weights_sink::WeightsSink;
use crate::checkpoint::WeightsFile;
use crate::data::tensor_payload::to_payload;
use crate::events::Direction;
use crate::session::replica_check::{compare_replicas, must_agree};
use crate::weights::chunks::{in_chunks, in_turns, total_bytes, Unread};
use crate::weights::state_dict::{expected, ExpectedTensor, StateDict};
use crate::weights::weight_files::WeightFiles;
use crate::BossManError;
use ::data::HashedWeight;
use bytes::Bytes;
use layerspec::DType;
use link::Payload;
use pipeline::boss::{Instruction, SendState};
use pipeline::ids::{Slot, StageId};
use pipeline::{slices, LoadContent, StateForm, StateName, StateSlice, TensorMeta, SLICE_BYTES};
use runtime::StateStream;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use tch::Tensor;
use tokio::sync::mpsc;

/// The bytes of weights that a worker reads from its files in one task. A task that takes long
/// looks like a device that hangs.
const READ_BYTES: u64 = 4 << 30;

/// A tensor, or a slice of one, for the workers that hold a stage.
pub(crate) struct StageTensor {
    pub(crate) stage: StageId,
    /// The name under which it travels, of [`StateName`].
    pub(crate) name: String,
    pub(crate) payload: Payload,
}

impl StageTensor {
    /// The tensor in slices over the same memory. A small one is its only slice.
    fn sliced(self) -> impl Iterator<Item = StageTensor> {
        let StageTensor { stage, name, payload } = self;
        let parts = slices(&name, &payload.meta, SLICE_BYTES).into_iter();
        parts.map(move |StateSlice { name, meta, bytes }| {
            let payload = Payload { meta, bytes: payload.bytes.slice(bytes) };
            StageTensor { stage, name, payload }
        })
    }
}

/// Fetches parameters and buffers from the workers.
pub(crate) async fn fetch(trainer: &mut Trainer) -> Result<StateDict, BossManError> {
    fetch_into(trainer, WeightsSink::Memory(BTreeMap::new())).await
}

/// Writes parameters and buffers to a safetensors file while they arrive.
pub(crate) async fn save(trainer: &mut Trainer, path: &Path) -> Result<(), BossManError> {
    let expected = expected(trainer.model.graph()).owned;
    let metas = expected.iter().map(|(name, tensor)| (name.as_str(), &tensor.meta));
    let file = WeightsFile::begin(path, metas)?;
    fetch_into(trainer, WeightsSink::File(Some(Box::new(file)))).await.map(drop)
}

async fn fetch_into(
    trainer: &mut Trainer,
    mut sink: WeightsSink,
) -> Result<StateDict, BossManError> {
    if must_agree(trainer) {
        compare_replicas(trainer).await?;
    }
    let of_bytes = total_bytes(expected(trainer.model.graph()).owned.values().map(|t| &t.meta));
    let meter = TransferMeter::begin(&trainer.events, Direction::FromWorkers, of_bytes);
    if !trainer.plan.copies_stage_by_stage() {
        sink.receive(request_weights(trainer, None), &meter).await?;
        return sink.finish().await;
    }
    let layout = trainer.plan.layout();
    let stages: Vec<StageId> = trainer.plan.stages.iter().map(|spec| spec.stage).collect();
    // Stage by stage, because no worker may have room for all.
    for stage in stages {
        let [gather, reshard] = layout.whole(stage).unwrap_or_default();
        trainer.run_actions(gather).await?;
        let fetched = sink.receive(request_weights(trainer, Some(stage)), &meter).await;
        trainer.run_actions(reshard).await?;
        fetched?;
    }
    sink.finish().await
}

/// Requests the parameters and buffers of a stage, or of all.
fn request_weights(trainer: &Trainer, stage: Option<StageId>) -> StateStream {
    let form = StateForm::Slices;
    trainer.handle.fetch(SendState { stage, optimizer: false, form })
}

/// Replaces parameters, buffers and tensors of optimizer state on all workers, a chunk at a time.
/// The model is not whole until [`end_load`].
pub(crate) async fn load(
    trainer: &mut Trainer,
    tensors: Vec<StageTensor>,
) -> Result<(), BossManError> {
    let of_bytes = bytes_of(&tensors);
    let meter = TransferMeter::begin(&trainer.events, Direction::ToWorkers, of_bytes);
    let parts = tensors.into_iter().flat_map(StageTensor::sliced);
    let bytes_of_one = |part: &StageTensor| part.payload.bytes.len() as u64;
    for chunk in in_chunks(in_turns(parts, |part| part.stage, bytes_of_one), bytes_of_one) {
        let bytes = bytes_of(&chunk);
        load_chunk(trainer, chunk).await?;
        meter.add(bytes);
    }
    Ok(())
}

fn bytes_of(tensors: &[StageTensor]) -> u64 {
    tensors.iter().map(|tensor| tensor.payload.bytes.len() as u64).sum()
}

async fn load_chunk(trainer: &mut Trainer, tensors: Vec<StageTensor>) -> Result<(), BossManError> {
    trainer.has_loaded = true;
    let tensors = insert_slots(trainer, tensors);
    let content = LoadContent::Part;
    trainer.call(Instruction::LoadState { tensors, content, more: true }).await
}

/// Ends a load: everything has come.
pub(crate) async fn end_load(trainer: &Trainer) -> Result<(), BossManError> {
    let (tensors, content) = (Vec::new(), LoadContent::Part);
    trainer.call(Instruction::LoadState { tensors, content, more: false }).await
}

/// Replaces those parameters and buffers on all workers that are among these weights. They are read
/// while others travel.
pub(crate) async fn load_files(
    trainer: &mut Trainer,
    files: &WeightFiles,
) -> Result<(), BossManError> {
    let (files, pieces) = (files.clone(), files.pieces());
    load_unread(trainer, pieces, move |piece| files.read(&piece)).await?;
    end_load(trainer).await
}

/// As [`load`], of tensors that a thread reads while others travel. Several stages have some in
/// each chunk, so that workers load at the same time.
pub(crate) async fn load_unread<P: Send + 'static>(
    trainer: &mut Trainer,
    unread: Vec<Unread<P>>,
    read: impl Fn(P) -> Result<Payload, BossManError> + Send + 'static,
) -> Result<(), BossManError> {
    let holders = Holders::of(trainer);
    let of_bytes = unread.iter().map(|one| one.bytes).fold(0, u64::saturating_add);
    let unread = in_turns(unread, |one| holders.first(&one.name), |one| one.bytes);
    let chunks = in_chunks(unread, |one| one.bytes);
    // One chunk waits while another one is read, and a third one travels.
    let (sender, mut chunks_read) = mpsc::channel(1);
    let reader = tokio::task::spawn_blocking(move || {
        for chunk in chunks {
            let named = |one: Unread<P>| Ok((one.name, read(one.place)?));
            let chunk: Result<Vec<_>, BossManError> = chunk.into_iter().map(named).collect();
            // Nobody waits for a chunk after a failure.
            if sender.blocking_send(chunk?).is_err() {
                break;
            }
        }
        Ok::<(), BossManError>(())
    });
    let meter = TransferMeter::begin(&trainer.events, Direction::ToWorkers, of_bytes);
    while let Some(chunk) = chunks_read.recv().await {
        let bytes = chunk.iter().map(|(_, payload)| payload.bytes.len() as u64).sum();
        let tensors = chunk
            .into_iter()
            .flat_map(|(name, payload): (String, Payload)| holders.each(&name, payload));
        let tensors = tensors.collect();
        load_chunk(trainer, tensors).await?;
        meter.add(bytes);
    }
    reader.await.map_err(|e| BossManError::Usage(e.to_string()))?
}

/// As [`load_files`], of weights that each worker reads from its own files.
pub(crate) async fn load_from_workers_files(
    trainer: &mut Trainer,
    weights: &[HashedWeight],
) -> Result<(), BossManError> {
    trainer.has_loaded = true;
    let holders = Holders::of(trainer);
    // Each stage has some weights in each call, so that workers read at the same time.
    let mut queues: BTreeMap<StageId, VecDeque<(u64, StageTensor)>> = BTreeMap::new();
    let mut all_bytes = 0u64;
    for weight in weights {
        let bytes: Bytes = weight.encode()?.into();
        let meta = TensorMeta { dtype: DType::UInt8, shape: vec![bytes.len() as u64] };
        let of_weight = weight.source.meta.byte_len().unwrap_or(0);
        for tensor in holders.each(&weight.name, Payload { meta, bytes }) {
            all_bytes = all_bytes.saturating_add(of_weight);
            queues.entry(tensor.stage).or_default().push_back((of_weight, tensor));
        }
    }
    let meter = TransferMeter::begin(&trainer.events, Direction::ToWorkers, all_bytes);
    while queues.values().any(|queue| !queue.is_empty()) {
        let first: Vec<_> = queues.values_mut().flat_map(take_weights).collect();
        let bytes = first.iter().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
        let first = first.into_iter().map(|(_, tensor)| tensor).collect();
        let tensors = insert_slots(trainer, first);
        let content = LoadContent::WeightSources;
        trainer.call(Instruction::LoadState { tensors, content, more: true }).await?;
        meter.add(bytes);
    }
    end_load(trainer).await
}

/// Takes the first weights of a queue, at most [`READ_BYTES`] of them or one.
fn take_weights(queue: &mut VecDeque<(u64, StageTensor)>) -> Vec<(u64, StageTensor)> {
    let (mut taken, mut sum) = (Vec::new(), 0u64);
    while let Some((bytes, tensor)) = queue.pop_front() {
        sum = sum.saturating_add(bytes);
        if sum > READ_BYTES && !taken.is_empty() {
            queue.push_front((bytes, tensor));
            break;
        }
        taken.push((bytes, tensor));
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

/// As [`by_stage`], of tensors that fit, by names of [`StateName`].
pub(crate) fn placed<'a>(
    trainer: &Trainer,
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
) -> Result<Vec<StageTensor>, BossManError> {
    let holders = Holders::of(trainer);
    let mut placed = Vec::new();
    for (name, tensor) in tensors {
        placed.extend(holders.each(name, to_payload(tensor)?));
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

    /// The stages that receive the tensor of this name of [`StateName`].
    fn receivers(&self, name: &str) -> &[StageId] {
        let parsed = StateName::parse(name);
        let holders: &[StageId] = self.0.get(parsed.parameter()).map_or(&[], Vec::as_slice);
        parsed.receivers(holders)
    }

    /// The first of them.
    fn first(&self, name: &str) -> Option<StageId> {
        self.receivers(name).first().copied()
    }

    /// The payload for each of them.
    fn each(&self, name: &str, payload: Payload) -> Vec<StageTensor> {
        let tensor = |stage: &StageId| StageTensor {
            stage: *stage,
            name: name.into(),
            payload: payload.clone(),
        };
        self.receivers(name).iter().map(tensor).collect()
    }
}
