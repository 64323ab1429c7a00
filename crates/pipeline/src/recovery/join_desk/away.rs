//! The workers that were asked to join again and have not come back yet.

use crate::recovery::Applicant;
use core::time::Duration;

/// The time within which a worker that was asked to join again is expected back. It asks at once,
/// and every second if it is refused, or every five if a call of its was cut off.
const RETURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The workers that were asked to join again for another order of places. They are still company,
/// so that nobody gets a place only because they are gone for a moment.
pub(super) struct Away<W> {
    workers: Vec<AwayWorker<W>>,
}

struct AwayWorker<W> {
    worker: W,
    since: Duration,
}

impl<W: Applicant> Away<W> {
    pub(super) fn new() -> Self {
        Away { workers: Vec::new() }
    }

    /// A worker is asked to join again.
    pub(super) fn add(&mut self, worker: W, now: Duration) {
        self.remove(&worker);
        self.workers.push(AwayWorker { worker, since: now });
    }

    pub(super) fn contains(&self, worker: &W) -> bool {
        self.iter().any(|one| one.is_same_process(worker))
    }

    /// Removes a worker that is back, or that gets no place. Returns whether it was away.
    pub(super) fn remove(&mut self, worker: &W) -> bool {
        let before = self.workers.len();
        self.workers.retain(|one| !one.worker.is_same_process(worker));
        self.workers.len() < before
    }

    /// Removes those that did not come back in time, and returns them.
    pub(super) fn remove_late(&mut self, now: Duration) -> Vec<W> {
        let is_late = |one: &AwayWorker<W>| now.saturating_sub(one.since) >= RETURN_TIMEOUT;
        let late = self.workers.iter().filter(|one| is_late(one));
        let late = late.map(|one| one.worker.clone()).collect();
        self.workers.retain(|one| !is_late(one));
        late
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &W> {
        self.workers.iter().map(|one| &one.worker)
    }
}
