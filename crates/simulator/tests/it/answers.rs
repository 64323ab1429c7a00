//! Receives and checks the boss's answers.

use super::World;
use crate::calls::Answered;
use pipeline::boss::{Answer, RoundResults};

impl World {
    pub(super) fn answered(&mut self, request: u64, answer: Answer) -> Answered {
        let mut answered = Answered::default();
        match answer {
            Answer::Instruct(()) | Answer::ReportLinks(_) => {}
            Answer::Run(results) => answered = self.results(*results),
            Answer::ChangeMembership(behind) => self.behind = behind,
            Answer::SendState(()) => answered.state = self.fetches.end(request),
            Answer::Measure(measured) => {
                answered.measured =
                    measured.first().map(|(_, times)| times.clone()).unwrap_or_default();
                assert!(measured.iter().all(|(_, times)| *times == answered.measured));
                assert_eq!(measured.len(), self.workers.len());
            }
            Answer::Digest(digests) => {
                for (worker, stage, _, digest) in &digests {
                    let differs = digests.iter().find(|(_, s, _, d)| s == stage && d != digest);
                    assert!(differs.is_none(), "{stage} of {worker} differs from {differs:?}");
                }
            }
            Answer::ListSnapshots(snapshots) => self.snapshots = snapshots,
            Answer::MakeIds(ids) => answered.unique_ids = ids,
        }
        answered
    }

    fn results(&mut self, results: RoundResults) -> Answered {
        let slots = &mut self.boss_slots;
        let outputs = results.outputs.into_iter();
        let outputs = outputs.map(|(index, value, slot)| (index, value, slots.give_up(slot)));
        let losses = results.losses.into_iter().map(|(index, loss)| (index, loss.to_bits()));
        let answered = Answered {
            losses: losses.collect(),
            outputs: outputs.collect(),
            grad_norm: results.grad_norm.map(f64::to_bits),
            ..Answered::default()
        };
        // Half a round trip more or less.
        let slack = self.network.conditions.delay + 1 + self.network.slack;
        for span in &results.spans {
            let (from, until) = (self.replied.saturating_sub(slack), self.network.now + slack);
            assert!(span.start <= span.end && span.end.0 <= until, "{span:?} ends after {until}");
            // While new workers are prepared, their replies come at any time.
            assert!(self.churn.is_some() || span.start.0 >= from, "{span:?} begins before {from}");
        }
        (self.spans, self.behind) = (results.spans, results.behind);
        answered
    }
}
