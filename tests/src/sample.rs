//! Samples of products that take too long for every run: models, cuts, schedules, packet orders.

/// The number of cuts of law 1 into each number of stages. `make check` sets it, and
/// `tools/run_tests.py` does for the fake GPU.
const VARIABLE: &str = "BOSSMAN_LAW_1_CUTS";

/// Returns the number of cuts of law 1 into each number of stages, if only a sample is played.
///
/// # Panics
/// The variable is no number.
pub fn cuts() -> Option<usize> {
    std::env::var(VARIABLE).ok().map(|number| number.parse().unwrap())
}

/// Whether this run plays samples only. `make test` on the CPU plays everything.
pub fn is_sampled() -> bool {
    cuts().is_some()
}

/// Returns all items, or in a sample every `each`th, beginning with the first.
pub fn sampled<T>(items: impl IntoIterator<Item = T>, each: usize) -> impl Iterator<Item = T> {
    items.into_iter().step_by(if is_sampled() { each } else { 1 })
}
