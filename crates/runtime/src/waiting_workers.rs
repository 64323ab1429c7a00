//! The workers that ask for a place in a run that has none free. They ask again and again, so the
//! driver keeps no connection to them.

use link::WorkerInfo;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most workers that are remembered, because anybody with the ticket may ask.
const MAX_WORKERS: usize = 64;
/// A worker counts for this long after it has asked. It asks every second.
const COUNTS_FOR: Duration = Duration::from_secs(3);

/// The workers that wait, shared by the driver and the handle.
#[derive(Clone, Default)]
pub(crate) struct WaitingWorkers(Arc<Mutex<Waiting>>);

/// A machine, a process id on it, and the random number of the process.
type Process = (String, u32, u64);

#[derive(Default)]
struct Waiting {
    /// Each with the time at which it last asked, by what identifies its process.
    asked: BTreeMap<Process, (WorkerInfo, Instant)>,
    /// The places that the run has, but no session with them yet.
    free: usize,
}

impl WaitingWorkers {
    /// Records that a worker asks now.
    pub(crate) fn note(&self, info: WorkerInfo, now: Instant) {
        let mut waiting = self.0.lock();
        waiting.forget_older(now);
        let key = (info.host.clone(), info.process, info.instance);
        if waiting.asked.len() < MAX_WORKERS || waiting.asked.contains_key(&key) {
            waiting.asked.insert(key, (info, now));
        }
    }

    /// The workers that wait now, ordered by machine and process.
    pub(crate) fn here(&self, now: Instant) -> Vec<WorkerInfo> {
        let mut waiting = self.0.lock();
        waiting.forget_older(now);
        waiting.asked.values().map(|(info, _)| info.clone()).collect()
    }

    /// Sets the number of places that the run could fill.
    pub(crate) fn offer(&self, free: usize) {
        self.0.lock().free = free;
    }

    /// Whether the run could fill a place.
    pub(crate) fn has_free_place(&self) -> bool {
        self.0.lock().free > 0
    }
}

impl Waiting {
    fn forget_older(&mut self, now: Instant) {
        self.asked.retain(|_, (_, asked)| now.saturating_duration_since(*asked) < COUNTS_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(process: u32) -> WorkerInfo {
        WorkerInfo { host: "attic".into(), process, ..WorkerInfo::default() }
    }

    fn processes(waiting: &WaitingWorkers, now: Instant) -> Vec<u32> {
        waiting.here(now).iter().map(|info| info.process).collect()
    }

    #[test]
    fn a_worker_counts_as_long_as_it_asks() {
        let (waiting, begin) = (WaitingWorkers::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        waiting.note(worker(7), begin);
        waiting.note(worker(3), at(1));
        waiting.note(worker(7), at(2));
        assert_eq!(processes(&waiting, at(3)), [3, 7]);
        assert_eq!(processes(&waiting, at(4)), [7]);
        assert_eq!(processes(&waiting, at(5)), [0; 0]);
        // The same process number on another machine is another worker.
        waiting.note(worker(7), at(6));
        waiting.note(WorkerInfo { host: "tower".into(), ..worker(7) }, at(6));
        assert_eq!(processes(&waiting, at(6)), [7, 7]);
        // So it is in another container of that name.
        waiting.note(WorkerInfo { instance: 5, ..worker(7) }, at(6));
        assert_eq!(processes(&waiting, at(6)), [7, 7, 7]);
    }

    #[test]
    fn a_crowd_is_not_remembered_as_a_whole() {
        let (waiting, begin) = (WaitingWorkers::default(), Instant::now());
        (0..1000).for_each(|process| waiting.note(worker(process), begin));
        assert_eq!(processes(&waiting, begin).len(), MAX_WORKERS);
        // Those that are remembered may ask again, and others get their turn later.
        let later = begin + COUNTS_FOR - Duration::from_millis(1);
        waiting.note(worker(0), later);
        waiting.note(worker(999), later);
        assert_eq!(processes(&waiting, begin + COUNTS_FOR), [0]);
        waiting.note(worker(999), begin + COUNTS_FOR);
        assert_eq!(processes(&waiting, begin + COUNTS_FOR), [0, 999]);
    }

    #[test]
    fn driver_and_handle_share_the_offer() {
        let driver = WaitingWorkers::default();
        let handle = driver.clone();
        assert!(!driver.has_free_place());
        handle.offer(1);
        assert!(driver.has_free_place());
        handle.offer(0);
        assert!(!driver.has_free_place());
    }
}
