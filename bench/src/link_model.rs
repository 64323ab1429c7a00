//! A network link in one direction: a bounded queue in front of a line with a given rate and delay.
//! The link may be impaired.

use std::str::FromStr;
use std::time::{Duration, Instant};

/// Models when packets that enter a link come out at its other end.
///
/// A packet waits until the line has sent all earlier packets. Sending it takes its size divided by
/// the rate. Then it travels for the delay. If packets already wait for longer than the queue's
/// time, the packet is dropped, as a router with a full buffer does.
#[derive(Debug, Clone)]
pub struct Link {
    delay: Duration,
    bits_per_second: f64,
    queue: Duration,
    /// The time at which the line is free again.
    free: Instant,
    impairment: Impairment,
    dice: Dice,
}

/// An impairment of a link in use, parsed from a line of text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Impairment {
    /// `clear`: no impairment.
    None,
    /// `loss 0.05`: this share of the packets is lost.
    Loss(f64),
    /// `cut`: all packets are lost.
    Cut,
    /// `mbit 1`: the link carries this many megabits per second instead of its own rate.
    Mbit(f64),
}

impl FromStr for Impairment {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<f64>().map_err(|e| format!("`{line}`: {e}"));
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["clear"] => Ok(Impairment::None),
            ["cut"] => Ok(Impairment::Cut),
            ["loss", share] => match number(share)? {
                share if (0.0..=1.0).contains(&share) => Ok(Impairment::Loss(share)),
                _ => Err(format!("`{line}`: expected a share from 0 to 1")),
            },
            ["mbit", rate] => match number(rate)? {
                rate if rate > 0.0 && rate.is_finite() => Ok(Impairment::Mbit(rate)),
                _ => Err(format!("`{line}`: expected a rate above 0")),
            },
            _ => Err(format!("`{line}`: expected `loss SHARE`, `cut`, `mbit RATE` or `clear`")),
        }
    }
}

/// A pseudo-random sequence that depends on the seed alone: SplitMix64 (Steele, Lea and Flood
/// 2014).
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    /// Draws a number from 0 to below 1.
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Link {
    /// Makes an idle link.
    pub fn new(delay: Duration, bits_per_second: f64, queue: Duration, now: Instant) -> Self {
        Link {
            delay,
            bits_per_second,
            queue,
            free: now,
            impairment: Impairment::None,
            dice: Dice(0),
        }
    }

    /// Sets the seed from which lost packets are drawn.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Link { dice: Dice(seed), ..self }
    }

    /// Returns the link of the other direction: alike, but with losses drawn from another seed.
    #[must_use]
    pub fn reversed(self) -> Self {
        Link { dice: Dice(!self.dice.0), ..self }
    }

    /// Replaces the current impairment.
    pub fn impairment(&mut self, impairment: Impairment) {
        self.impairment = impairment;
    }

    /// Returns when a packet of `bytes` bytes that enters now comes out, or `None` if it is
    /// dropped.
    pub fn send(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let (lost, rate) = match self.impairment {
            Impairment::None => (false, self.bits_per_second),
            Impairment::Loss(share) => (self.dice.roll() < share, self.bits_per_second),
            Impairment::Cut => (true, self.bits_per_second),
            Impairment::Mbit(rate) => (false, rate * 1e6),
        };
        let begins = self.free.max(now);
        if lost || begins - now > self.queue {
            return None;
        }
        self.free = begins + Duration::from_secs_f64(bytes as f64 * 8.0 / rate);
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
        let mut link = Link::new(20 * MS, 1e6, 100 * MS, start); // 125 bytes per millisecond
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
        assert_eq!(sent, 6); // one packet on the line and 5 ms of packets in the queue
        assert_eq!(link.send(start, 125), None);
        assert_eq!(link.send(start + MS, 125), Some(start + 7 * MS));
    }

    #[test]
    fn a_link_has_the_rate_it_was_given_while_it_is_given() {
        let start = Instant::now();
        let mut link = Link::new(Duration::ZERO, 1e6, 100 * MS, start);
        link.impairment(Impairment::Mbit(0.5));
        assert_eq!(link.send(start, 125), Some(start + 2 * MS));
        link.impairment(Impairment::None);
        assert_eq!(link.send(start, 125), Some(start + 3 * MS));
    }

    #[test]
    fn a_cut_link_loses_all_and_what_it_loses_takes_no_time() {
        let start = Instant::now();
        let mut link = Link::new(Duration::ZERO, 1e6, 100 * MS, start);
        link.impairment(Impairment::Cut);
        assert_eq!((0..9).filter_map(|_| link.send(start, 125)).count(), 0);
        link.impairment(Impairment::None);
        assert_eq!(link.send(start, 125), Some(start + MS));
    }

    #[test]
    fn a_share_of_the_packets_is_lost_and_a_seed_says_which() {
        let start = Instant::now();
        let arrived = |seed| {
            let mut link = Link::new(Duration::ZERO, 1e12, 100 * MS, start).seed(seed);
            link.impairment(Impairment::Loss(0.2));
            (0..10_000).map(|_| link.send(start, 125).is_some()).collect::<Vec<_>>()
        };
        let lost = arrived(7).iter().filter(|here| !**here).count();
        assert!((1800..2200).contains(&lost), "{lost}");
        assert_eq!(arrived(7), arrived(7));
        assert_ne!(arrived(7), arrived(8));
    }

    #[test]
    fn troubles_are_read_and_others_refused() {
        let read = |line: &str| line.parse::<Impairment>();
        assert_eq!(read("clear"), Ok(Impairment::None));
        assert_eq!(read("cut\n"), Ok(Impairment::Cut));
        assert_eq!(read("loss 0.05"), Ok(Impairment::Loss(0.05)));
        assert_eq!(read("mbit 1"), Ok(Impairment::Mbit(1.0)));
        for wrong in ["", "loss", "loss 5", "loss NaN", "mbit 0", "mbit inf", "cut 1", "rain"] {
            assert!(read(wrong).unwrap_err().starts_with(&format!("`{wrong}`: ")));
        }
    }
}
