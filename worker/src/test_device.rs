//! The device of tests that `tools/run_tests.py` runs on the fake GPU, too.

use tch::Device;

/// Returns `cpu`, unless `BOSSMAN_TEST_DEVICE` names another device.
pub(crate) fn device() -> Device {
    let cuda = tensor::cuda::load();
    let name = std::env::var("BOSSMAN_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    let device = tensor::device::parse(&name).unwrap();
    assert!(tensor::device::all().contains(&device), "{name}: {cuda}");
    device
}
