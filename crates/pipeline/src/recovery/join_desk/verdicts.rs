//! The verdicts on unfit workers, and whose turn it is to be judged.
//!
//! Each verdict takes a plan, so few workers are judged at a time. All that ask wait in a queue. A
//! worker that was judged goes to its end. So each of `n` workers that go on asking is judged
//! within `n / MOST_JUDGED` periods, rounded up, if at most `MOST_REMEMBERED` ask.

use crate::recovery::Applicant;
use core::time::Duration;

/// The most workers that are judged in a period. The others wait.
pub(super) const MOST_JUDGED: usize = 8;
/// A period of verdicts. It also ends when a worker joins or leaves.
const PERIOD: Duration = Duration::from_secs(10);
/// A worker that waits asks every second, or every five if a call of its was cut off. One that does
/// not holds up nobody.
const ASK_TIMEOUT: Duration = Duration::from_secs(6);
/// The most workers in the queue. Anybody with the ticket may ask for a place.
const MOST_REMEMBERED: usize = 256;

/// The unfit workers that ask for a place.
pub(super) struct Verdicts<W> {
    /// The first was judged longest ago, or never.
    queue: Vec<Asker<W>>,
    /// The number of workers that may still be judged in this period.
    left: usize,
    period_began: Duration,
}

struct Asker<W> {
    worker: W,
    asked: Duration,
    /// Whether it does not fit beside the present ones.
    is_denied: bool,
}

impl<W: Applicant> Verdicts<W> {
    pub(super) fn new() -> Self {
        Verdicts { queue: Vec::new(), left: MOST_JUDGED, period_began: Duration::ZERO }
    }

    /// A worker asks. Returns whether it is to be judged now. If not, it gets no place: it has a
    /// verdict, or others are to be judged first.
    pub(super) fn is_turn_of(&mut self, worker: &W, now: Duration) -> bool {
        if now.saturating_sub(self.period_began) >= PERIOD {
            (self.left, self.period_began) = (MOST_JUDGED, now);
        }
        let Some(place) = self.place_in_queue(worker, now) else { return false };
        let (before, others) = self.queue.split_at_mut(place);
        let Some(asker) = others.first_mut() else { return false };
        asker.asked = now;
        let waits =
            |one: &&Asker<W>| !one.is_denied && now.saturating_sub(one.asked) <= ASK_TIMEOUT;
        if asker.is_denied || before.iter().filter(waits).count() >= self.left {
            return false;
        }
        self.left -= 1;
        true
    }

    /// A worker does not fit beside the present ones.
    pub(super) fn deny(&mut self, worker: &W, now: Duration) {
        self.remove(worker);
        self.queue.push(Asker { worker: worker.clone(), asked: now, is_denied: true });
    }

    /// A worker gets a place.
    pub(super) fn remove(&mut self, worker: &W) {
        self.queue.retain(|one| !one.worker.is_same_process(worker));
    }

    /// This worker came or went, so the others have other company. Its own is the same.
    pub(super) fn company_changed(&mut self, by: &W) {
        self.left = MOST_JUDGED;
        for one in self.queue.iter_mut().filter(|one| !one.worker.is_same_process(by)) {
            one.is_denied = false;
        }
    }

    /// The place of a worker in the queue. A new one takes the last. `None` if the queue is full.
    fn place_in_queue(&mut self, worker: &W, now: Duration) -> Option<usize> {
        let is_same = |one: &Asker<W>| one.worker.is_same_process(worker);
        if let Some(place) = self.queue.iter().position(is_same) {
            return Some(place);
        }
        if self.queue.len() >= MOST_REMEMBERED {
            self.queue.retain(|one| now.saturating_sub(one.asked) <= ASK_TIMEOUT);
        }
        if self.queue.len() >= MOST_REMEMBERED {
            // It may ask for another verdict behind all others.
            let oldest = self.queue.iter().position(|one| one.is_denied)?;
            self.queue.remove(oldest);
        }
        self.queue.push(Asker { worker: worker.clone(), asked: now, is_denied: false });
        Some(self.queue.len() - 1)
    }
}
