//! The balance of the tensors that a driver holds for the boss's session.
//!
//! A value in which tensors wait must be in the sum. Otherwise every request with them fails.

use super::{BossSession, Phase};
use crate::failure::Failure;

impl BossSession {
    /// The number of tensors that its driver holds for it, once all effects are taken.
    pub fn held_slots(&self) -> usize {
        let waiting = self.waiting.iter().map(|(_, request)| request.slot_count());
        let current = self.job.as_ref().map_or(0, |job| match &job.phase {
            Phase::Collecting(collector) => collector.held(),
            Phase::Aborting { .. } => 0,
        });
        let background = self.background.values().map(|(_, collector)| collector.held());
        waiting.sum::<usize>() + current + background.sum::<usize>()
    }

    /// Whether no request is at work, waits, or collects state that still travels.
    pub fn is_at_rest(&self) -> bool {
        self.job.is_none()
            && self.waiting.is_empty()
            && self.background.is_empty()
            && self.awaited_followers.is_empty()
    }

    /// Fails if a tensor was lost or given back twice. No tensor may be in a local variable then.
    pub(super) fn settle_slots(&mut self) -> Result<(), Failure> {
        let held = self.held_slots();
        self.outbox.settle(held).map_err(|failure| {
            let message = format!("the boss: {}", failure.message);
            Failure { message, ..failure }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Instruction, IntoRequest, Setup};
    use super::*;
    use crate::effect::{BossEffect, Micros};
    use crate::ids::WorkerId;
    use crate::message::ToBoss;
    use crate::{Cuts, Placement, Plan};
    use layerspec::LayerGraph;

    const NOW: Micros = Micros(0);

    /// The results of requests.
    fn replies(session: &mut BossSession) -> Vec<String> {
        let reply = |effect: BossEffect| match effect {
            BossEffect::Reply { result: Ok(_), .. } => Some("ok".to_string()),
            BossEffect::Reply { result: Err(failure), .. } => Some(failure.message),
            _ => None,
        };
        std::iter::from_fn(|| session.poll_effect()).filter_map(reply).collect()
    }

    #[test]
    fn a_request_after_which_tensors_are_lost_fails_and_the_next_does_not() {
        let linear = "  - Linear: {in_features: 4, out_features: 4}\n";
        let text = format!("inputs: {{x: [batch, 4]}}\nlayers:\n{linear}");
        let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
        let plan = Plan::new(&graph, &Cuts::Auto, 1, Placement::Plain).expect("a good cut");
        let mut session = BossSession::new(Setup::new(plan));
        session.outbox.take(1);
        session.on_request(NOW, 1, Instruction::Stop.into_request());
        let lost = "the boss: 1 tensors were neither used nor freed; please report it";
        assert_eq!(replies(&mut session), [lost]);
        session.on_message(NOW, WorkerId(0), ToBoss::Aborted { id: 1, stepped: false });
        session.on_request(NOW, 2, Instruction::Stop.into_request());
        assert_eq!(replies(&mut session), ["ok"]);
    }
}
