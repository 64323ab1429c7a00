//! One answer from each worker that owes one.

use crate::ids::WorkerId;
use std::collections::BTreeSet;

/// The answers of workers, each of which sends one before it reports that its command is complete.
pub(super) struct PerWorker<T> {
    owing: BTreeSet<WorkerId>,
    received: Vec<(WorkerId, T)>,
}

impl<T> PerWorker<T> {
    pub(super) fn of(workers: &BTreeSet<WorkerId>) -> Self {
        PerWorker { owing: workers.clone(), received: Vec::new() }
    }

    /// Whether this worker has not sent its answer.
    pub(super) fn is_owed_by(&self, worker: WorkerId) -> bool {
        self.owing.contains(&worker)
    }

    /// Takes a worker's answer. Returns false if it owes none.
    pub(super) fn take(&mut self, from: WorkerId, answer: T) -> bool {
        let owed = self.owing.remove(&from);
        if owed {
            self.received.push((from, answer));
        }
        owed
    }

    /// The answers in the order of workers.
    pub(super) fn into_sorted(mut self) -> Vec<(WorkerId, T)> {
        self.received.sort_by_key(|(worker, _)| *worker);
        self.received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_answers_once_and_only_if_it_owes_an_answer() {
        let [first, second, stranger] = [0, 1, 2].map(WorkerId);
        let mut answers = PerWorker::of(&BTreeSet::from([first, second]));
        assert!(answers.take(second, "b") && !answers.is_owed_by(second));
        assert!(!answers.take(second, "again") && !answers.take(stranger, "unasked"));
        assert!(answers.is_owed_by(first) && answers.take(first, "a"));
        assert_eq!(answers.into_sorted(), [(first, "a"), (second, "b")]);
    }
}
