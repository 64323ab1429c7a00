//! What the boss answers, taken in and checked.

use super::World;
use crate::calls::Answered;
use pipeline::effect::Answer;

impl World {
    pub(super) fn answered(&mut self, answer: Answer) -> Answered {
        let slots = &mut self.boss_slots;
        let outputs = answer.outputs.into_iter().map(|(index, value, slot)| (index, value, slots.give_up(slot)));
        let outputs = outputs.collect();
        let state = answer.state.into_iter().map(|(name, slot)| (name, slots.give_up(slot))).collect();
        let losses = answer.losses.into_iter().map(|(index, loss)| (index, loss.to_bits())).collect();
        // Half a round trip more or less.
        let slack = self.network.conditions.delay + 1 + self.network.slack;
        for span in &answer.spans {
            let (from, until) = (self.replied.saturating_sub(slack), self.network.now + slack);
            assert!(span.start <= span.end && span.end.0 <= until, "{span:?} ends after {until}");
            // Where workers are made ready, replies to that come at any time.
            assert!(self.churn.is_some() || span.start.0 >= from, "{span:?} begins before {from}");
        }
        self.spans = answer.spans;
        self.behind = answer.behind;
        self.copies = answer.copies;
        for (worker, stage, _, digest) in &answer.digests {
            let differs = answer.digests.iter().find(|(_, s, _, d)| s == stage && d != digest);
            assert!(differs.is_none(), "{stage} of {worker} has other weights than {differs:?}");
        }
        let measured = answer.measured.first().map(|(_, times)| times.clone()).unwrap_or_default();
        assert!(answer.measured.iter().all(|(_, times)| *times == measured));
        assert!(answer.measured.is_empty() || answer.measured.len() == self.workers.len());
        let (grad_norm, unique_ids) = (answer.grad_norm.map(f64::to_bits), answer.unique_ids);
        Answered { losses, outputs, state, grad_norm, unique_ids, measured }
    }
}
