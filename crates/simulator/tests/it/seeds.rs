//! Runs many cases; one that fails is run again with its events printed.

use std::fmt::Debug;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// Prints events as they happen, if a failing case is replayed.
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
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(case, Log { on: false })))
        else {
            continue;
        };
        eprintln!("case {case:?} fails; its events:");
        scenario(case, Log { on: true });
        resume_unwind(panic);
    }
}

/// Runs `count` seeds. `BOSSMAN_SIM_SEEDS=5000` multiplies this by five. `BOSSMAN_SIM_SEED=7` runs
/// one seed and prints its events.
pub fn each_seed(count: u64, mut scenario: impl FnMut(u64, Log)) {
    if let Some(seed) = number("BOSSMAN_SIM_SEED") {
        return scenario(seed, Log { on: true });
    }
    each(0..(count * seeds()).div_ceil(1000), |seed, log| {
        log.note(|| {
            let thread = std::thread::current();
            let test = thread.name().unwrap_or_default().to_string();
            format!("replay: BOSSMAN_SIM_SEED={seed} cargo test -p simulator {test}")
        });
        scenario(seed, log);
    });
}

/// The numbers from 1 to `last`, in order. `BOSSMAN_SIM_SEEDS=100` takes every tenth.
pub fn each_number(last: u64) -> impl Iterator<Item = u64> {
    each_nth_number(last, 1)
}

/// Every `stride`-th number from 1 to `last`, in order. `BOSSMAN_SIM_SEEDS=2000` takes twice as
/// many.
pub fn each_nth_number(last: u64, stride: u64) -> impl Iterator<Item = u64> {
    (1..=last).step_by((1000 * stride / seeds().max(1)).max(1) as usize)
}

fn seeds() -> u64 {
    number("BOSSMAN_SIM_SEEDS").unwrap_or(1000)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a whole number"))
}
