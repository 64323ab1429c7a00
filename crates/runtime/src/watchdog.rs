//! Detects a task that never ends. A device or a driver that hangs reports no error.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The number of checks within a time limit. Checks are counted instead of time, because this
/// process may have stood still itself.
const CHECKS: u32 = 20;

/// The state of the compute thread, as the watchdog sees it. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct TaskWatch(Arc<Watched>);

#[derive(Default)]
struct Watched {
    /// Grows when a task begins, and when it ends. It is odd during a task.
    transitions: AtomicU64,
    /// Whether the task waits for other workers. Such a task gets twice the time, so that the
    /// worker that it waits for is found first.
    waits_for_others: AtomicBool,
}

impl TaskWatch {
    /// Records that a task begins.
    pub(crate) fn begin(&self, waits_for_others: bool) {
        self.0.waits_for_others.store(waits_for_others, Ordering::Relaxed);
        self.0.transitions.fetch_add(1, Ordering::Release);
    }

    /// Records that the task ends.
    pub(crate) fn end(&self) {
        self.0.transitions.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns when one task has run for the time limit.
    pub(crate) async fn wait_until_hanging(&self, limit: Duration) {
        let mut checks = tokio::time::interval((limit / CHECKS).max(Duration::from_millis(1)));
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut checks_in_task, mut most) = (0, 0, CHECKS);
        while checks_in_task < most {
            checks.tick().await;
            let now = self.0.transitions.load(Ordering::Acquire);
            let in_task = !now.is_multiple_of(2);
            checks_in_task = if now == seen && in_task { checks_in_task + 1 } else { 0 };
            most =
                if self.0.waits_for_others.load(Ordering::Relaxed) { 2 * CHECKS } else { CHECKS };
            seen = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_task_that_never_ends_is_found_and_many_short_ones_are_not() {
        let (watch, limit) = (TaskWatch::default(), Duration::from_millis(100));
        assert!(
            timeout(2 * limit, watch.wait_until_hanging(limit)).await.is_err(),
            "there is no task"
        );
        for _ in 0..3 {
            watch.begin(false);
            assert!(timeout(limit * 9 / 10, watch.wait_until_hanging(limit)).await.is_err());
            watch.end();
        }
        watch.begin(true);
        assert!(timeout(limit * 18 / 10, watch.wait_until_hanging(limit)).await.is_err());
        watch.end();
        watch.begin(false);
        let begun = Instant::now();
        timeout(Duration::from_secs(60), watch.wait_until_hanging(limit)).await.unwrap();
        assert!(begun.elapsed() >= limit * 9 / 10);
    }
}
