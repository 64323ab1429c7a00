//! The devices on which the workers of the tests compute.

use tch::Device;

/// Names the device, as `worker --device` takes it: `cpu`, one GPU, or `cuda` for all GPUs.
/// `tools/run_tests.py` sets it, and so can the owner of a machine with GPUs.
const VARIABLE: &str = "BOSSMAN_TEST_DEVICE";

/// Returns the device's name, which is `cpu` unless `BOSSMAN_TEST_DEVICE` names another one.
pub fn device_name() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| "cpu".into())
}

/// Whether the GPUs are those of the fake in crates/testkit, which computes with the kernels of the
/// CPU. `tools/run_tests.py` sets the variable.
pub fn is_fake() -> bool {
    std::env::var_os("FAKECUDA_DEVICES").is_some()
}

/// Returns the device of the first worker.
pub fn device() -> Device {
    device_of(0)
}

/// Returns the device of a worker. With `cuda`, workers take the GPUs in turn.
///
/// # Panics
/// This machine does not have it.
pub fn device_of(worker: usize) -> Device {
    let name = device_name();
    let cuda = tensor::cuda::load();
    let all = tensor::device::all();
    let gpus: Vec<Device> =
        all.iter().copied().filter(|device| matches!(device, Device::Cuda(_))).collect();
    if name == "cuda" && !gpus.is_empty() {
        return gpus[worker % gpus.len()];
    }
    let device = tensor::device::parse(&name).unwrap();
    assert!(all.contains(&device), "{VARIABLE}={name}: {cuda}");
    device
}
