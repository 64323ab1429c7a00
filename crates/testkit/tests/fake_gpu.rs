//! The fake CUDA device's own tests, which are C++ programs.

#![allow(clippy::unwrap_used, reason = "a test")]

use testkit::fake_gpu::{Assertions, FakeGpu};

/// Runs a test with these arguments, in these orders of the device's work. `None` if this machine
/// cannot have the fake; `tools/run_tests.py` says so.
fn passes(name: &str, assertions: Assertions, runs: &[(&[&str], u32)]) {
    let Ok(fake) = FakeGpu::build(assertions) else { return };
    for (arguments, hold) in runs {
        let mut test = fake.own_test(name);
        let seed = hold.to_string();
        test.env("FAKECUDA_HOLD_US", hold.to_string()).env("FAKECUDA_SEED", seed);
        let output = test.args(*arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && !said.contains("FAIL"),
            "{name} {arguments:?}, held up to {hold} us, ends with {}:\n{said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn tensors_live_and_compute_on_it() {
    passes("smoke", Assertions::Off, &[(&[], 0), (&[], 2000)]);
}

#[test]
fn it_trains_as_the_cpu_does() {
    passes("train", Assertions::Off, &[(&[], 0), (&[], 2000)]);
}

#[test]
fn its_work_comes_late_and_its_errors_stick() {
    passes("async", Assertions::Off, &[(&[], 2000)]);
}

#[test]
fn programs_of_torchscript_and_many_threads_run_on_it() {
    passes("extra", Assertions::Off, &[(&[], 2000)]);
}

#[test]
fn a_missing_wait_is_found() {
    passes("detect", Assertions::Off, &[(&[], 2000)]);
}

#[test]
fn a_process_ends_with_work_under_way() {
    passes("leave", Assertions::Off, &[(&["0"], 0), (&["500"], 2000)]);
}

/// The assertions of libtorch's headers find references that dangle.
#[test]
fn libtorchs_own_assertions_hold() {
    passes("extra", Assertions::On, &[(&[], 2000)]);
}
