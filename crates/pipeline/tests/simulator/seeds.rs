//! Runs many cases; one that fails is run again with its events printed.

use std::fmt::Debug;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// Prints events as they happen, where a failing case is replayed.
#[derive(Copy, Clone, Default)]
pub struct Log {
    on: bool,
}

impl Log {
    pub fn note(&self, line: impl FnOnce() -> String) {
        if self.on {
            eprintln!("{}", line());
        }
    }
}

/// Runs every case; the first that fails is run again with its events printed.
pub fn each<C: Copy + Debug>(cases: impl IntoIterator<Item = C>, mut scenario: impl FnMut(C, Log)) {
    for case in cases {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(case, Log { on: false }))) else { continue };
        eprintln!("case {case:?} fails; its events:");
        scenario(case, Log { on: true });
        resume_unwind(panic);
    }
}

/// Runs that many seeds; `BOSSMAN_SIM_SEEDS=5000` makes it five times as many, `BOSSMAN_SIM_SEED=7`
/// runs one and prints its events.
pub fn each_seed(count: u64, mut scenario: impl FnMut(u64, Log)) {
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
