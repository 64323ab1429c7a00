//! Seeds: a random source, and a runner that prints the events of a case that fails.

use std::fmt::Debug;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// SplitMix64 (Steele et al. 2014): small, and every seed gives a good sequence.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// Prints events as they happen, where a failing case is replayed.
#[derive(Copy, Clone)]
pub(crate) struct Log {
    on: bool,
}

impl Log {
    pub(crate) fn note(&self, line: impl FnOnce() -> String) {
        if self.on {
            eprintln!("{}", line());
        }
    }
}

/// Runs every case; the first that fails is run again with its events printed.
pub(crate) fn each<C: Copy + Debug>(cases: impl IntoIterator<Item = C>, mut scenario: impl FnMut(C, Log)) {
    for case in cases {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(case, Log { on: false }))) else { continue };
        eprintln!("case {case:?} fails; its events:");
        scenario(case, Log { on: true });
        resume_unwind(panic);
    }
}

/// Runs that many seeds; `BOSSMAN_SIM_SEEDS=5000` makes it five times as many, `BOSSMAN_SIM_SEED=7`
/// runs one and prints its events.
pub(crate) fn each_seed(count: u64, mut scenario: impl FnMut(u64, Log)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a whole number"));
    if let Some(seed) = number("BOSSMAN_SIM_SEED") {
        return scenario(seed, Log { on: true });
    }
    let thousands = number("BOSSMAN_SIM_SEEDS").unwrap_or(1000);
    each(0..(count * thousands).div_ceil(1000), |seed, log| {
        log.note(|| {
            let thread = std::thread::current();
            let test = thread.name().unwrap_or_default().to_string();
            format!("replay: BOSSMAN_SIM_SEED={seed} cargo test -p pipeline --test simulator {test}")
        });
        scenario(seed, log);
    });
}
