//! The time of an action on a worker.

use crate::ids::WorkerId;
use crate::micros::Micros;
use crate::schedule::Action;

/// When an action ran, on the boss's clock, with an error of half a round trip.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct WorkerSpan {
    /// Where.
    pub worker: WorkerId,
    /// What.
    pub action: Action,
    /// From when.
    pub start: Micros,
    /// Until when.
    pub end: Micros,
}
