//! Devices: their names, the existing ones, and their memory.

use crate::host_memory::{self, HostMemory};
use crate::{cuda, ffi, TensorError};
use tch::Device;

/// Memory of a device in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The memory that is not in use now.
    pub free: u64,
    /// The whole memory.
    pub total: u64,
}

impl DeviceMemory {
    /// The bytes that a run can use. Of a CPU all: the operating system moves other programs aside.
    /// Of a GPU the free ones, less a sixteenth, at most 512 MiB, for the workspaces of cuBLAS,
    /// cuDNN and NCCL and for gaps between blocks.
    pub fn usable(&self, device: Device) -> u64 {
        const RESERVE_MAX: u64 = 512 << 20;
        match device {
            Device::Cpu => self.total,
            _ => self.free.saturating_sub((self.total / 16).min(RESERVE_MAX)),
        }
    }
}

/// A device name that names none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no device is called {0:?}; expected cpu, cuda:N (cuda:0 is the first GPU) or mps")]
pub struct UnknownDevice(pub String);

/// Parses `cpu`, `cuda`, `cuda:N` or `mps`. Does not check that the device exists.
pub fn parse(name: &str) -> Result<Device, UnknownDevice> {
    match name {
        "cpu" => Ok(Device::Cpu),
        "mps" => Ok(Device::Mps),
        "cuda" => Ok(Device::Cuda(0)),
        _ => name
            .strip_prefix("cuda:")
            .and_then(|index| index.parse::<u8>().ok())
            .map(|index| Device::Cuda(index.into()))
            .ok_or_else(|| UnknownDevice(name.into())),
    }
}

/// The name that [`parse`] reads back.
pub fn name(device: Device) -> String {
    match device {
        Device::Cpu => "cpu".into(),
        Device::Cuda(index) => format!("cuda:{index}"),
        Device::Mps => "mps".into(),
        Device::Vulkan => "vulkan".into(),
    }
}

/// Identifies a device on this machine for all its processes, which may call it by another name: a
/// GPU by its address on the PCI bus, a MIG slice by its UUID, others by their name. The CPU of a
/// container with a limit of memory counts as one of its own. Call [`crate::cuda::load`] before.
pub fn hardware_id(device: Device) -> String {
    let of_gpu = match device {
        Device::Cuda(gpu) => cuda::uuid::slice(gpu).or_else(|| cuda::bus_id(gpu)),
        Device::Cpu => {
            let group = host_memory::read().and_then(|host| host.group);
            group.map(|group| format!("{} in cgroup {group}", name(device)))
        }
        _ => None,
    };
    of_gpu.unwrap_or_else(|| name(device))
}

/// The devices of this machine, the CPU first. Call [`crate::cuda::load`] before.
pub fn all() -> Vec<Device> {
    let gpus = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
    let mps = tch::utils::has_mps().then_some(Device::Mps);
    std::iter::once(Device::Cpu).chain((0..gpus).map(Device::Cuda)).chain(mps).collect()
}

/// The kind of processor of a device. Results are equal to the bit on processors of one kind: for a
/// CPU its architecture, vendor, family and model, for a GPU its name. Call [`crate::cuda::load`]
/// before.
pub fn processor(device: Device) -> String {
    match device {
        Device::Cpu => {
            host_processor(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
        }
        Device::Cuda(index) => match cuda::gpu_name(index) {
            Some(gpu) => format!("cuda {gpu}"),
            None => "cuda".into(),
        },
        other => name(other),
    }
}

/// Reads the text of Linux's `/proc/cpuinfo`. Without it, only the architecture is known.
fn host_processor(cpuinfo: &str) -> String {
    let value_of = |field: &str| {
        let named = |line: &&str| line.split(':').next().is_some_and(|name| name.trim() == field);
        Some(cpuinfo.lines().find(named)?.split_once(':')?.1.trim().to_string())
    };
    let mut parts = vec![std::env::consts::ARCH.to_string()];
    parts.extend(value_of("vendor_id"));
    for (field, word) in [
        ("cpu family", "family"),
        ("model", "model"),
        ("CPU implementer", "implementer"),
        ("CPU part", "part"),
    ] {
        parts.extend(value_of(field).map(|value| format!("{word} {value}")));
    }
    parts.join(" ")
}

/// The memory of a device, if known.
pub fn memory(device: Device) -> Option<DeviceMemory> {
    if device == Device::Cpu {
        let HostMemory { free, total, .. } = host_memory::read()?;
        return Some(DeviceMemory { free, total });
    }
    if !all().contains(&device) {
        return None;
    }
    let (kind, index) = ffi::device_code(device);
    let mut memory = DeviceMemory { free: 0, total: 0 };
    // SAFETY: both pointers are to live integers.
    let status = unsafe { ffi::bm_device_memory(kind, index, &mut memory.free, &mut memory.total) };
    ffi::check("device memory", status).ok().map(|()| memory)
}

/// The most bytes that tensors of this process had on a GPU at one time. `None` for other devices,
/// whose tensors nobody counts.
pub fn peak_memory(device: Device) -> Option<u64> {
    if !matches!(device, Device::Cuda(_)) || !all().contains(&device) {
        return None;
    }
    let (kind, index) = ffi::device_code(device);
    let mut bytes = 0;
    // SAFETY: the pointer is to a live integer.
    let status = unsafe { ffi::bm_peak_memory(kind, index, &mut bytes) };
    ffi::check("the most memory of the device", status).ok().map(|()| bytes)
}

/// Gives freed memory that libtorch keeps for later tensors back to the GPUs. Blocks of the sizes
/// of one model need not suit those of the next. Does nothing for other devices.
///
/// # Errors
/// The device is broken, or not there.
pub fn empty_cache(device: Device) -> Result<(), TensorError> {
    if !matches!(device, Device::Cuda(_)) {
        return Ok(());
    }
    let (kind, index) = ffi::device_code(device);
    // SAFETY: the function takes numbers, and checks that they name a device.
    ffi::check("freeing memory of the device", unsafe { ffi::bm_empty_cache(kind, index) })
}

/// Waits until a device has done all that it was given. A CPU has.
///
/// # Errors
/// The work failed, or the device is not there.
pub fn synchronize(device: Device) -> Result<(), TensorError> {
    if device == Device::Cpu {
        return Ok(());
    }
    let (kind, index) = ffi::device_code(device);
    // SAFETY: the function takes numbers, and checks that they name a device.
    ffi::check("waiting for the device", unsafe { ffi::bm_synchronize(kind, index) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_its_vendor_family_and_model() {
        let arch = std::env::consts::ARCH;
        let info = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n\
                    model name\t: AMD EPYC\n\nprocessor\t: 1\nvendor_id\t: Other\n";
        assert_eq!(host_processor(info), format!("{arch} AuthenticAMD family 26 model 2"));
        let info = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(host_processor(info), format!("{arch} implementer 0x41 part 0xd0c"));
        assert_eq!(host_processor(""), arch);
    }

    #[test]
    fn names_read_back() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(17), Device::Mps] {
            assert_eq!(parse(&name(device)), Ok(device));
        }
        assert_eq!(parse("cuda"), Ok(Device::Cuda(0)));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:999999999999", "cpu:0"] {
            assert_eq!(parse(wrong), Err(UnknownDevice(wrong.into())));
        }
    }

    #[test]
    fn the_cpu_is_the_first_device() {
        assert_eq!(all().first(), Some(&Device::Cpu));
    }

    #[test]
    fn a_device_without_a_cache_has_nothing_to_empty() {
        assert!(empty_cache(Device::Cpu).is_ok());
    }

    #[test]
    fn a_run_can_use_what_is_free_on_a_gpu_less_a_reserve() {
        let memory = |free, total| DeviceMemory { free, total };
        assert_eq!(memory(3 << 30, 4 << 30).usable(Device::Cuda(0)), (3 << 30) - (256 << 20));
        assert_eq!(memory(70 << 30, 80 << 30).usable(Device::Cuda(0)), (70 << 30) - (512 << 20));
        assert_eq!(memory(1, 4 << 30).usable(Device::Cuda(0)), 0);
        assert_eq!(memory(1 << 30, 4 << 30).usable(Device::Cpu), 4 << 30);
    }

    #[test]
    fn a_device_that_is_not_there_has_no_memory() {
        assert_eq!(memory(Device::Cuda(99)), None);
        assert_eq!(peak_memory(Device::Cuda(99)), None);
    }

    #[test]
    fn nobody_counts_the_tensors_of_a_cpu() {
        assert_eq!(peak_memory(Device::Cpu), None);
    }
}
