//! Seeds that once failed, with the cause. Each is played every time. A seed has its meaning only
//! as long as its test draws the same numbers in the same order. If you change the order, look for
//! new seeds with the fixes reverted.

use crate::seeds::each;
use crate::{lost_workers, mixed_faults, pool_faults};

/// The test that draws a run from a seed.
#[derive(Copy, Clone, Debug)]
enum Test {
    /// `mixed_faults::simulator_everything_strikes_at_random`
    Mixed,
    /// `pool_faults::simulator_a_pool_is_struck_at_random`
    Pool,
    /// `lost_workers::simulator_everything_goes_wrong_at_once`
    Wrong,
}

/// The tests and seeds that failed, with the causes. Wrong weights that `every_event` found had the
/// same causes.
const REGRESSIONS: [(Test, u64, &str); 18] = [
    (Test::Mixed, 4, "tensors that came again after their use stayed in the inbox for ever"),
    (Test::Mixed, 91, "tensors that came again after their use stayed in the inbox for ever"),
    (Test::Mixed, 230, "gradients' sums that came again stayed until the end"),
    (
        Test::Mixed,
        181,
        "a command that came twice was carried out twice, and waited for what had been used",
    ),
    (
        Test::Mixed,
        192,
        "a command that came twice was carried out twice, and waited for what had been used",
    ),
    (
        Test::Mixed,
        204,
        "a command that came twice was carried out twice, and waited for what had been used",
    ),
    (
        Test::Mixed,
        313,
        "a command that came twice was carried out twice, and waited for what had been used",
    ),
    (
        Test::Mixed,
        328,
        "a command that came twice was carried out twice, and waited for what had been used",
    ),
    (Test::Mixed, 221, "a weight that came twice stood for another, which was loaded nowhere"),
    (Test::Pool, 1, "tensors that came again after their use stayed in the inbox for ever"),
    (Test::Pool, 47, "sums for a round that was over stayed until the end"),
    (
        Test::Pool,
        39,
        "a command that came twice was carried out twice, and waited for what had been used",
    ),
    (
        Test::Pool,
        45,
        "a command that came twice was carried out twice, and waited for what had been used",
    ),
    (
        Test::Pool,
        296,
        "losses that came twice counted twice where a step ended without their worker",
    ),
    (
        Test::Pool,
        317,
        "losses that came twice counted twice where a step ended without their worker",
    ),
    (
        Test::Pool,
        399,
        "losses that came twice counted twice where a step ended without their worker",
    ),
    (Test::Pool, 60, "sums for a round that was over stayed until the end"),
    (
        Test::Wrong,
        38_627,
        "the simulator's own: parts were gathered behind an update that had failed, which no \
         worker does",
    ),
];

#[test]
fn simulator_what_failed_once_is_mended() {
    each(REGRESSIONS, |(test, seed, _), log| match test {
        Test::Mixed => drop(mixed_faults::run(seed, log)),
        Test::Pool => pool_faults::at_random(seed, log),
        Test::Wrong => lost_workers::everything_goes_wrong(seed, log),
    });
}
