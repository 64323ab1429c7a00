//! Moves weights from the workers, and to them.

use super::trainer::Trainer;
use crate::data::tensor_payload::{from_payload, to_payload};
use crate::session::replica_check::{compare_replicas, must_agree};
use crate::weights::state_dict::{expected, ExpectedTensor, StateDict};
use crate::BossManError;
use link::Payload;
use pipeline::boss::{Instruction, SendState};
use pipeline::ids::{Slot, StageId};
use pipeline::StateForm;
use std::collections::BTreeMap;
use tch::Tensor;

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
    for (name, slot) in
        trainer.call(SendState { stage, optimizer: false, form: StateForm::Tensors }).await?
    {
        if let Some(payload) = trainer.handle.slots.remove(slot) {
            tensors.insert(name, from_payload(&payload)?);
        }
    }
    Ok(())
}

/// Replaces parameters and buffers on all workers.
pub(crate) async fn load(
    trainer: &mut Trainer,
    tensors: Vec<StageTensor>,
) -> Result<(), BossManError> {
    trainer.has_loaded = true;
    let tensors = insert_slots(trainer, tensors);
    trainer.call(Instruction::LoadState { tensors, optimizer: false }).await
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
    let graph = trainer.model.graph();
    let fitting = weights.fit_to(graph)?;
    let mut tensors = Vec::new();
    for (name, ExpectedTensor { layer, parameter, .. }) in expected(graph).owned {
        if let Some(tensor) = fitting.get(&name) {
            let payload = to_payload(tensor)?;
            let holders = trainer.plan.holders(layer, parameter).into_iter();
            tensors.extend(holders.map(|stage| StageTensor {
                stage,
                name: name.clone(),
                payload: payload.clone(),
            }));
        }
    }
    Ok(tensors)
}
