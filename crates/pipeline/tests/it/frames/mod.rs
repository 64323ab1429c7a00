//! Frames and sessions under outside inputs: every head is encoded and decoded, broken frames are
//! refused, and the decoder (see `crates/testkit/src/inputs.rs`) and both sessions run under a
//! seeded fuzz. It needs no special compiler. `BOSSMAN_FUZZ_SECONDS` sets the time of each fuzz
//! (default 3).

mod fuzz_frame;
mod fuzz_sessions;
mod heads;
mod names;
mod refused;
mod roundtrip;
mod slots;

use std::time::{Duration, Instant};
use testkit::Random;

/// Runs seed after seed until the time is up. Prints the seed of a panic.
fn fuzz(mut case: impl FnMut(&mut Random)) {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the seed was {}; BOSSMAN_FUZZ_SEED={} starts with it", self.0, self.0);
            }
        }
    }
    let number = |name: &str| {
        std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a whole number"))
    };
    let first = number("BOSSMAN_FUZZ_SEED").unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(number("BOSSMAN_FUZZ_SECONDS").unwrap_or(3));
    let mut seed = Seed(first);
    while seed.0 < first + 10 || Instant::now() < end {
        case(&mut Random::new(seed.0));
        seed.0 += 1;
    }
    eprintln!("{} seeds", seed.0 - first);
}
