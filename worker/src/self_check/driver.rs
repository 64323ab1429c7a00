//! Checks which device there is: its driver, libtorch, and memory.

use crate::program::chosen_device;
use crate::program::options::Options;
use crate::self_check::report::{Findings, Problem};
use tch::Device;
use tensor::cuda::{self, CudaStatus};

const GIB: f64 = (1u64 << 30) as f64;

/// The device that the options name, and what is known of it.
///
/// # Errors
/// It is not there, or nobody named the CPU and the machine has a GPU that cannot be used.
pub(crate) fn check(options: &Options) -> Result<(Device, Findings), Problem> {
    let device =
        chosen_device::device(options).map_err(|error| Problem::last(format!("{error:#}")))?;
    let cuda = cuda::load();
    if device == Device::Cpu && cuda.is_fault() && options.named_device().is_none() {
        return Err(Problem::last(format!("{cuda}; `worker --self-check cpu` checks the CPU")));
    }
    let name = tensor::device::name(device);
    let processor = tensor::device::processor(device);
    let libtorch = tensor::libtorch_version();
    let mut text = format!("{name} ({processor}), {cuda}, libtorch {libtorch}");
    let memory = tensor::device::memory(device);
    if let Some(memory) = memory {
        let [free, total] = [memory.free, memory.total].map(|bytes| bytes as f64 / GIB);
        text += &format!(", {free:.1} of {total:.1} GiB memory free");
    }
    let mut findings = Findings::new(text)
        .figure("device", name)
        .figure("processor", processor)
        .figure("cuda", cuda.to_string())
        .figure("libtorch", libtorch)
        .figure("memory_free", memory.map(|memory| memory.free))
        .figure("memory_total", memory.map(|memory| memory.total));
    if let CudaStatus::Loaded(driver) = cuda {
        findings = findings
            .figure("driver_cuda", driver.cuda.to_string())
            .figure("gpus", driver.gpus.clone());
    }
    Ok((device, findings))
}
