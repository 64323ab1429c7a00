//! Tests what a worker says about GPUs, with the fake CUDA device and without one.

use testkit::fake_gpu::{Assertions, FakeGpu};
use tests::programs::TestFolder;

/// Starts a worker that sees the fake's GPUs, and ends it once it has spoken. Returns the line with
/// this part. `None` if this machine cannot have the fake.
async fn line(environment: &[(&str, &str)], device: &[&str], part: &str) -> Option<String> {
    let fake = FakeGpu::build(Assertions::Off).ok()?;
    let place = TestFolder::new();
    let own = fake.environment();
    let mut all: Vec<(&str, &str)> =
        own.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    all.extend(environment);
    // Nobody listens there.
    let arguments = [&["--port", "9", "--threads", "1"], device].concat();
    let mut worker = place.start_with("worker", &arguments, &all);
    Some(worker.line(part).await)
}

#[tokio::test]
async fn a_worker_tells_its_driver_and_gpus_or_why_there_are_none() {
    let golden = [
        (("FAKECUDA_DEVICES", "2"), "CUDA 13.0 driver, cuda:0 fake GPU 0, cuda:1 fake GPU 1"),
        (
            ("FAKECUDA_DEVICES", "0"),
            "worker: warning: computes on the CPU; no CUDA: the NVIDIA driver (CUDA 13.0) finds no \
             GPU",
        ),
        (
            ("FAKECUDA_DRIVER", "broken"),
            "worker: warning: computes on the CPU; no CUDA: the NVIDIA driver does not work: \
             starting it: system has unsupported display driver / cuda driver combination (CUDA \
             error 803); try nvidia-smi",
        ),
        (
            ("FAKECUDA_DRIVER", "12040"),
            "worker: warning: computes on the CPU; no CUDA: the NVIDIA driver supports CUDA 12.4, \
             and libtorch needs CUDA 13.0; update the driver, or set LIBTORCH to a libtorch for \
             CUDA 12",
        ),
    ];
    for (variable, expected) in golden {
        let Some(line) = line(&[variable], &[], "CUDA").await else { return };
        assert_eq!(line, expected);
    }
}

#[tokio::test]
async fn a_gpu_that_is_named_but_not_there_is_an_error_with_the_reason() {
    let golden = [
        (
            ("FAKECUDA_DEVICES", "2"),
            "cuda:7",
            "worker: --device cuda:7: not on this machine, which has cpu, cuda:0, cuda:1; CUDA \
             13.0 driver, cuda:0 fake GPU 0, cuda:1 fake GPU 1",
        ),
        (
            ("FAKECUDA_DEVICES", "0"),
            "cuda",
            "worker: --device cuda: not on this machine, which has cpu; no CUDA: the NVIDIA driver \
             (CUDA 13.0) finds no GPU",
        ),
        (
            ("FAKECUDA_DEVICES", "0"),
            "all",
            "worker: --device all: this machine has no GPU that libtorch can use (no CUDA: the \
             NVIDIA driver (CUDA 13.0) finds no GPU); leave --device out to use the CPU",
        ),
    ];
    for (variable, device, expected) in golden {
        let Some(line) = line(&[variable], &["--device", device], "worker: ").await else { return };
        assert_eq!(line, expected);
    }
}
