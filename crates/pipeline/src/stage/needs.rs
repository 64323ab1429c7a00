//! The tensors that an action waits for.

use super::inbox::Item;
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
        // `reduction` handles the exchange between replicas.
        Action::Reduce { .. }
        | Action::AllGather { .. }
        | Action::Share { .. }
        | Action::Reshard { .. } => Vec::new(),
        Action::GradNorm { .. } => tied_grads(spec),
        // If this worker computes a norm, it adds the gradients then.
        Action::OptimStep { stage }
            if !round.actions.contains(&Action::GradNorm { stage: *stage }) =>
        {
            tied_grads(spec)
        }
        Action::UpdateTied { .. } => {
            spec.lenders().into_iter().map(|from| Item::TiedValues { from }).collect()
        }
        Action::OptimStep { .. } | Action::BackwardWeight { .. } | Action::ReduceTied { .. } => {
            Vec::new()
        }
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

/// The output on which the loss is computed.
pub(super) fn loss_output(spec: &StageSpec) -> Option<usize> {
    spec.outputs.iter().position(|o| o.model_output == Some(0))
}

/// The limit of the gradients' norm, if there is one.
pub(super) fn max_norm(round: &Round) -> Option<f64> {
    round.update.and_then(|update| update.max_norm)
}
