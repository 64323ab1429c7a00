//! A network link in one direction: a bounded queue in front of a line of a given rate and length.

use std::time::{Duration, Instant};

/// When packets handed to a link come out at its other end.
///
/// A packet waits until those before it have been put on the line, takes its size divided by the rate to be
/// put there itself, and then travels for the delay. Where more than the queue's time waits already, it is
/// dropped, as a router's full buffer does.
#[derive(Debug, Clone)]
pub struct Link {
    delay: Duration,
    bits_per_second: f64,
    queue: Duration,
    /// When the line is free again.
    free: Instant,
}

impl Link {
    /// A link with nothing on its way.
    pub fn new(delay: Duration, bits_per_second: f64, queue: Duration, now: Instant) -> Self {
        Link { delay, bits_per_second, queue, free: now }
    }

    /// When a packet of so many bytes that is handed over now comes out; None where it is dropped.
    pub fn send(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let begins = self.free.max(now);
        if begins - now > self.queue {
            return None;
        }
        self.free = begins + Duration::from_secs_f64(bytes as f64 * 8.0 / self.bits_per_second);
        Some(self.free + self.delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn packets_follow_one_another_at_the_rate_and_arrive_after_the_delay() {
        let start = Instant::now();
        let mut link = Link::new(20 * MS, 1e6, 100 * MS, start); // 125 bytes a millisecond
        assert_eq!(link.send(start, 125), Some(start + 21 * MS));
        assert_eq!(link.send(start, 250), Some(start + 23 * MS));
        // The line was idle for 7 ms.
        assert_eq!(link.send(start + 10 * MS, 125), Some(start + 31 * MS));
    }

    #[test]
    fn a_full_queue_drops_until_it_has_drained() {
        let start = Instant::now();
        let mut link = Link::new(Duration::ZERO, 1e6, 5 * MS, start);
        let sent = (0..20).filter(|_| link.send(start, 125).is_some()).count();
        assert_eq!(sent, 6); // one on the line, five milliseconds of them waiting
        assert_eq!(link.send(start, 125), None);
        assert_eq!(link.send(start + MS, 125), Some(start + 7 * MS));
    }
}
