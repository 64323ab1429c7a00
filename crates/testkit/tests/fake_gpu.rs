//! The fake CUDA device's own tests, which are C++ programs.

#![allow(clippy::unwrap_used, reason = "a test")]

use testkit::fake_gpu::{counts, Assertions, FakeGpu};

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
fn a_first_call_comes_late_too() {
    passes("first_calls", Assertions::Off, &[(&[], 2000)]);
}

#[test]
fn a_missing_wait_is_found() {
    passes("detect", Assertions::Off, &[(&[], 2000)]);
}

#[test]
fn a_process_ends_with_work_under_way() {
    passes("leave", Assertions::Off, &[(&["0"], 0), (&["500"], 2000)]);
}

#[test]
fn other_processes_read_its_counts() {
    passes("counts", Assertions::Off, &[(&[], 0), (&[], 2000)]);
}

/// The program copies twice with waits, once in each direction, and reads one number.
#[test]
fn a_test_in_rust_reads_its_counts() {
    let Ok(fake) = FakeGpu::build(Assertions::Off) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    assert!(counts(&file).is_err(), "there is no file yet");
    let status = fake.own_test("counts").arg("once").env("FAKECUDA_COUNTS", &file).status();
    assert!(status.unwrap().success());
    let counts = counts(&file).unwrap();
    let blocking = (counts.to_device_blocking, counts.to_host_blocking, counts.blocking_copy);
    assert_eq!((blocking, counts.item, counts.on_devices), ((1, 1, 2), 1, 1));
}

#[test]
fn errors_come_where_a_test_wants_them() {
    passes("faults", Assertions::Off, &[(&[], 0), (&[], 2000)]);
}

#[test]
fn processes_share_its_memory_and_late_copies_keep_theirs() {
    passes("memory", Assertions::Off, &[(&[], 0), (&[], 2000)]);
}

#[test]
fn a_test_chooses_which_stream_is_late() {
    passes("orders", Assertions::Off, &[(&[], 0), (&[], 2000)]);
}

/// The assertions of libtorch's headers find references that dangle.
#[test]
fn libtorchs_own_assertions_hold() {
    passes("extra", Assertions::On, &[(&[], 2000)]);
}
