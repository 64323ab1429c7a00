//! The commands of a round, and the frames with the tensors that it starts from.

use super::request::RunRequest;
use crate::effect::{BossEffect, Destination, Peer};
use crate::ids::{MicrobatchKey, Slot, StageId, WorkerId};
use crate::message::{Round, TensorHead};
use crate::plan::Plan;
use crate::replicas::MicrobatchOrder;
use layerspec::ValueId;

/// The round of one worker. `reads` is set if it has stages that read samples.
pub(super) fn round(run: &RunRequest, worker: WorkerId, reads: bool) -> Round {
    Round {
        batch: run.batch,
        step: run.step,
        mode: run.mode,
        kv_cache: run.kv_cache.clone(),
        actions: run.actions.get(worker.0 as usize).cloned().unwrap_or_default(),
        loss: run.loss.clone(),
        outputs: run.outputs,
        samples: run.samples.clone().filter(|_| reads),
        grads_from_boss: run.grads.is_some(),
        order: run.order.clone(),
        microbatch_assignment: run.microbatch_assignment.clone(),
        microbatches: run.microbatches,
        reduction: run.reduction,
        update: run.update,
        watch: run.watch,
    }
}

/// The frames with the tensors of a round. Inputs go to the stages that use them, targets to the
/// stage that computes the loss, gradients to the stages that made the outputs.
pub(super) fn tensors(run: RunRequest, plan: &Plan) -> Vec<BossEffect> {
    let batch = run.batch;
    let microbatch_order =
        MicrobatchOrder::new(&run.microbatch_assignment, &plan.stage_placement, run.microbatches);
    let microbatch_assignment = run.microbatch_assignment;
    let send = |index: u32,
                stages: Vec<StageId>,
                slots: Vec<Slot>,
                head: &dyn Fn(StageId) -> TensorHead| {
        let to = stages.into_iter().filter_map(|stage| {
            let peer =
                Peer::Worker(microbatch_assignment.worker(&plan.stage_placement, stage, index)?);
            Some(Destination { peer, route: None, head: head(stage) })
        });
        let to: Vec<_> = to.collect();
        if to.is_empty() {
            BossEffect::Drop(slots)
        } else {
            BossEffect::Send { to, slots }
        }
    };
    let users = |value: ValueId| {
        let uses = plan
            .stages
            .iter()
            .filter(|s| s.inputs.iter().any(|i| i.value == value && i.from.is_none()));
        uses.map(|s| s.stage).collect::<Vec<_>>()
    };
    let maker = |wanted: &dyn Fn(&crate::plan::StageOutput) -> bool| {
        plan.stages
            .iter()
            .find(|s| s.outputs.iter().any(wanted))
            .map(|s| s.stage)
            .into_iter()
            .collect::<Vec<_>>()
    };
    let inputs = run.inputs.into_iter().map(|(index, value, slot)| {
        let key = MicrobatchKey { batch, index };
        (index, send(index, users(value), vec![slot], &|to| TensorHead::Value { key, value, to }))
    });
    let targets = run.targets.into_iter().map(|(index, slot)| {
        let key = MicrobatchKey { batch, index };
        (
            index,
            send(index, maker(&|o| o.model_output == Some(0)), vec![slot], &|to| {
                TensorHead::Target { key, to }
            }),
        )
    });
    let grads = run.grads.into_iter().flatten().map(|(index, value, slots)| {
        let key = MicrobatchKey { batch, index };
        let head = |to| TensorHead::Gradient { key, value, from: None, to };
        (index, send(index, maker(&|o| o.value == value && o.needs_grad), slots, &head))
    });
    let mut sends: Vec<_> = inputs.chain(targets).chain(grads).collect();
    sends.sort_by_key(|(index, _)| microbatch_order.of(*index));
    sends.into_iter().map(|(_, send)| send).collect()
}
