//! The only clock: sessions are told the time in microseconds since their driver started.

use pipeline::effect::Micros;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> Micros {
        self.of(Instant::now())
    }

    pub(crate) fn of(&self, moment: Instant) -> Micros {
        Micros(u64::try_from(moment.saturating_duration_since(self.0).as_micros()).unwrap_or(u64::MAX))
    }

    /// Ends at that time; never where there is none.
    pub(crate) async fn at(&self, time: Option<Micros>) {
        match time {
            Some(Micros(at)) => tokio::time::sleep_until((self.0 + Duration::from_micros(at)).into()).await,
            None => std::future::pending().await,
        }
    }
}

/// By what QUIC dates the proof that a caller's address is its own, which holds for 15 seconds: not by the time of day, which
/// may be set anew between a caller's first packet and its second.
pub(crate) struct SinceStart;

impl quinn::TimeSource for SinceStart {
    fn now(&self) -> SystemTime {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        UNIX_EPOCH + START.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn::TimeSource;

    #[test]
    fn quic_dates_nothing_by_the_time_of_day() {
        let first = SinceStart.now();
        assert!(first < UNIX_EPOCH + Duration::from_secs(24 * 60 * 60) && first <= SinceStart.now());
    }
}
