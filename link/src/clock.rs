//! The only clock: sessions are told the time in microseconds since their driver started.

use pipeline::effect::Micros;
use std::time::{Duration, Instant};

pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> Micros {
        Micros(u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Ends at that time; never where there is none.
    pub(crate) async fn at(&self, time: Option<Micros>) {
        match time {
            Some(Micros(at)) => tokio::time::sleep_until((self.0 + Duration::from_micros(at)).into()).await,
            None => std::future::pending().await,
        }
    }
}
