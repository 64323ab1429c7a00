//! The tensors that an action waits for, and whether the plan lets a sender send a tensor to a
//! stage.

use super::inbox::Item;
use super::StageSession;
use crate::effect::Peer;
use crate::ids::StageId;
use crate::message::Round;
use crate::plan::{StageOutput, StageSpec};
use crate::schedule::Action;

/// The tensors that an action of a round takes from the inbox.
pub(super) fn needs(round: &Round, spec: &StageSpec, action: &Action) -> Vec<Item> {
    match action {
        Action::Forward { .. } => {
            let target = round.loss.as_ref().and(loss_output(spec)).map(|_| Item::Target);
            spec.inputs.iter().map(|i| Item::Value(i.value)).chain(target).collect()
        }
        Action::Backward { .. } | Action::BackwardInput { .. } => {
            spec.outputs.iter().flat_map(|output| gradients(round, output)).collect()
        }
        // `reducing` handles the exchange between replicas.
        Action::Reduce { .. } | Action::AllGather { .. } | Action::Share { .. } | Action::Reshard { .. } => Vec::new(),
        Action::GradNorm { .. } => tied_grads(spec),
        // Where this worker found the norm, the gradients were added then.
        Action::OptimStep { stage } if !round.actions.contains(&Action::GradNorm { stage: *stage }) => tied_grads(spec),
        Action::UpdateTied { .. } => spec.lenders().into_iter().map(|from| Item::TiedValues { from }).collect(),
        Action::OptimStep { .. } | Action::BackwardWeight { .. } | Action::ReduceTied { .. } => Vec::new(),
    }
}

/// The gradients of an output from outside, in the order in which they are summed.
pub(super) fn gradients(round: &Round, output: &StageOutput) -> Vec<Item> {
    if !output.needs_grad {
        return Vec::new();
    }
    let from_boss = (output.model_output.is_some() && round.grads_from_boss).then_some(None);
    let senders = from_boss.into_iter().chain(output.to.iter().copied().map(Some));
    senders.map(|from| Item::Gradient { value: output.value, from }).collect()
}

fn tied_grads(spec: &StageSpec) -> Vec<Item> {
    spec.holders_of_copies().into_iter().map(|from| Item::TiedGrads { from }).collect()
}

/// Which output the loss is computed on.
pub(super) fn loss_output(spec: &StageSpec) -> Option<usize> {
    spec.outputs.iter().position(|o| o.model_output == Some(0))
}

/// The limit of the gradients' norm, if there is one.
pub(super) fn max_norm(round: &Round) -> Option<f64> {
    round.update.and_then(|update| update.max_norm)
}

impl StageSession {
    /// Whether the plan has this sender give this stage this many tensors of this kind.
    pub(super) fn expects(&self, from: Peer, stage: StageId, item: Item, tensors: usize) -> bool {
        let Some(spec) = self.stages.iter().find(|s| s.stage == stage) else { return false };
        let is_at = |stage: Option<StageId>| match stage {
            None => from == Peer::Boss,
            Some(stage) => matches!(from, Peer::Worker(worker) if self.stage_placement.has(stage, worker)),
        };
        match item {
            Item::Target => from == Peer::Boss && loss_output(spec).is_some(),
            Item::Value(value) => spec.inputs.iter().any(|i| i.value == value && is_at(i.from)),
            Item::Gradient { value, from: stage } => {
                let output = spec.outputs.iter().find(|o| o.value == value && o.needs_grad);
                let given = output.is_some_and(|o| match stage {
                    None => o.model_output.is_some(),
                    Some(stage) => o.to.contains(&stage),
                });
                given && is_at(stage)
            }
            Item::Sum { .. } | Item::Reduced { .. } | Item::Updated { .. } | Item::Statistics { .. } => {
                self.expects_of_replica(from, stage, item, tensors)
            }
            Item::TiedGrads { from } => {
                spec.holders_of_copies().contains(&from) && is_at(Some(from)) && tensors == spec.tied_grads_from(from)
            }
            Item::TiedValues { from } => {
                spec.lenders().contains(&from) && is_at(Some(from)) && tensors == spec.tied_values_from(from)
            }
        }
    }
}
