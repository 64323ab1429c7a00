//! Whether a task never ends: a device or a driver that hangs does not say so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The number of checks of the same task that make up its time limit. Looks are counted and not
/// time, for this process may have stood still itself.
const CHECKS: u32 = 20;

/// The compute thread's report to its watchdog: a number that grows when a task begins, and when it
/// ends. It is odd between. And whether the task waits for other workers, which has twice the time:
/// the one that they wait for is found first.
#[derive(Clone, Default)]
pub(crate) struct TaskWatch(Arc<(AtomicU64, AtomicBool)>);

impl TaskWatch {
    pub(crate) fn begin(&self, waits_for_others: bool) {
        self.0 .1.store(waits_for_others, Ordering::Relaxed);
        self.0 .0.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.0 .0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns when one task has run for the time limit.
    pub(crate) async fn stuck_for(&self, limit: Duration) {
        let mut looks = tokio::time::interval((limit / CHECKS).max(Duration::from_millis(1)));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut idle_checks, mut most) = (0, 0, CHECKS);
        while idle_checks < most {
            looks.tick().await;
            let now = self.0 .0.load(Ordering::Acquire);
            let is_at_work = !now.is_multiple_of(2);
            idle_checks = if now == seen && is_at_work { idle_checks + 1 } else { 0 };
            most = if self.0 .1.load(Ordering::Relaxed) { 2 * CHECKS } else { CHECKS };
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
        let (at_work, limit) = (TaskWatch::default(), Duration::from_millis(100));
        assert!(timeout(2 * limit, at_work.stuck_for(limit)).await.is_err(), "there is no task");
        for _ in 0..3 {
            at_work.begin(false);
            assert!(timeout(limit * 9 / 10, at_work.stuck_for(limit)).await.is_err());
            at_work.end();
        }
        at_work.begin(true);
        assert!(timeout(limit * 18 / 10, at_work.stuck_for(limit)).await.is_err());
        at_work.end();
        at_work.begin(false);
        let begun = Instant::now();
        timeout(Duration::from_secs(60), at_work.stuck_for(limit)).await.unwrap();
        assert!(begun.elapsed() >= limit * 9 / 10);
    }
}
