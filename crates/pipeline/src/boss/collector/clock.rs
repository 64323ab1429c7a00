//! A worker's times on the boss's clock.

use crate::ids::WorkerId;
use crate::message::Span;
use crate::micros::Micros;
use crate::worker_span::WorkerSpan;

/// A question and its answer, by the clocks of both ends.
pub(super) struct Clock {
    pub(super) asked: Micros,
    pub(super) received: Micros,
    pub(super) answered: Micros,
    pub(super) heard: Micros,
}

impl Clock {
    /// Converts a worker's time to the boss's clock. The middle of the worker's working time is the
    /// middle of the boss's wait, as in NTP (RFC 5905).
    pub(super) fn place(&self, worker: WorkerId, span: Span) -> WorkerSpan {
        let middle = |a: Micros, b: Micros| i128::from(a.0) + i128::from(b.0);
        let ahead = (middle(self.received, self.answered) - middle(self.asked, self.heard)) / 2;
        let on_boss = |time: Micros| Micros(u64::try_from(i128::from(time.0) - ahead).unwrap_or(0));
        WorkerSpan {
            worker,
            action: span.action,
            start: on_boss(span.start),
            end: on_boss(span.end),
        }
    }
}
