//! The device and the threads that the options name.

use crate::program::options::Options;
use anyhow::{bail, Context, Result};
use tch::Device;
use tensor::cuda::uuid;

/// Sets the number of compute threads.
pub(crate) fn set_threads(options: &Options) -> Result<()> {
    match options.threads {
        None => {}
        Some(0) => bail!("--threads 0: at least one compute thread is needed"),
        Some(threads) => tensor::threads::set_count(threads),
    }
    Ok(())
}

/// The device that the options name, or the one that fits this machine.
pub(crate) fn device(options: &Options) -> Result<Device> {
    let all = tensor::device::all();
    let Some((flag, name)) = options.named_device() else {
        let gpus = all.iter().copied().filter(|device| *device != Device::Cpu);
        let gpus: Vec<Device> = gpus.collect();
        let chosen = gpus.iter().cycle().nth(options.local_number.unwrap_or(0));
        return Ok(chosen.copied().unwrap_or(Device::Cpu));
    };
    let device = match uuid::is_uuid(name) {
        true => Device::Cuda(0),
        false => tensor::device::parse(name).context(flag)?,
    };
    if !all.contains(&device) {
        let names: Vec<_> = all.iter().map(|d| tensor::device::name(*d)).collect();
        let cuda = match device {
            Device::Cuda(_) => format!("; {}", tensor::cuda::load()),
            _ => String::new(),
        };
        bail!("{flag} {name}: not on this machine, which has {}{cuda}", names.join(", "));
    }
    Ok(device)
}
