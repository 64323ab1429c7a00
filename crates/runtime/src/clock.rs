//! The only clock. Sessions get the time in microseconds since their driver started.

use pipeline::effect::Micros;
use std::time::{Duration, Instant};

pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> Micros {
        self.of(Instant::now())
    }

    pub(crate) fn of(&self, moment: Instant) -> Micros {
        Micros(
            u64::try_from(moment.saturating_duration_since(self.0).as_micros()).unwrap_or(u64::MAX),
        )
    }

    /// Waits until this time, or forever if it is `None`.
    pub(crate) async fn at(&self, time: Option<Micros>) {
        match time {
            Some(Micros(at)) => {
                tokio::time::sleep_until((self.0 + Duration::from_micros(at)).into()).await
            }
            None => std::future::pending().await,
        }
    }
}
