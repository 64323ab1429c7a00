//! The clock by which QUIC dates address validation tokens.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Dates the tokens by which a caller proves its address. A token is valid for 15 seconds. The time
/// of day would not do, because it may be adjusted between a caller's first packet and its second.
pub(crate) struct TokenClock;

impl quinn::TimeSource for TokenClock {
    fn now(&self) -> SystemTime {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        UNIX_EPOCH + START.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn::TimeSource;
    use std::time::Duration;

    #[test]
    fn tokens_are_not_dated_by_the_time_of_day() {
        let first = TokenClock.now();
        assert!(
            first < UNIX_EPOCH + Duration::from_secs(24 * 60 * 60) && first <= TokenClock.now()
        );
    }
}
