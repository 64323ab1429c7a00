//! Loading libtorch's CUDA half at run time.
//!
//! A binary linked against libtorch names only libtorch_cpu, so that it starts on machines that
//! have no CUDA libraries. If they lie beside it, loading them registers the GPU with libtorch.
//! That must happen before libtorch is first asked about GPUs: it remembers the answer.

mod driver;
mod library;
pub mod uuid;

pub use driver::{CudaVersion, Driver};

use crate::ffi;
use driver::DriverError;
use library::Library;
use std::ffi::CStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The result of [`load`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CudaStatus {
    /// The libraries are loaded, and libtorch sees GPUs.
    Loaded(Driver),
    /// No libtorch_cuda beside libtorch_cpu: a libtorch for CPUs only.
    NoLibrary {
        /// The folder in which it was expected.
        folder: PathBuf,
        /// How many GPUs the driver has nevertheless.
        gpus: usize,
    },
    /// The library exists, but this machine has no NVIDIA driver, so it was not loaded.
    NoDriver,
    /// The driver exists, but gives no GPUs.
    NoGpu {
        /// The reason, and what to do.
        reason: String,
    },
    /// The library exists but cannot be loaded.
    Failed {
        /// The loader's message. Usually one of NVIDIA's libraries is missing.
        reason: String,
    },
}

impl CudaStatus {
    /// Whether the machine seems to have a GPU that cannot be used.
    pub fn is_fault(&self) -> bool {
        match self {
            CudaStatus::Loaded(_) | CudaStatus::NoDriver => false,
            CudaStatus::NoLibrary { gpus, .. } => *gpus > 0,
            CudaStatus::NoGpu { .. } | CudaStatus::Failed { .. } => true,
        }
    }
}

impl fmt::Display for CudaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaStatus::Loaded(Driver { cuda, gpus }) => {
                write!(f, "CUDA {cuda} driver")?;
                let mut gpus = gpus.iter().enumerate();
                gpus.try_for_each(|(number, name)| write!(f, ", cuda:{number} {name}"))
            }
            CudaStatus::NoLibrary { folder, gpus: 0 } => {
                write!(f, "no CUDA: {} holds no libtorch_cuda.so", folder.display())
            }
            CudaStatus::NoLibrary { folder, gpus } => write!(
                f,
                "no CUDA: the driver has {gpus} GPU{}, but {} holds no libtorch_cuda.so: install a \
                 libtorch for CUDA",
                if *gpus == 1 { "" } else { "s" },
                folder.display()
            ),
            CudaStatus::NoDriver => {
                f.write_str("no CUDA: this machine has no NVIDIA driver (libcuda.so.1)")
            }
            CudaStatus::NoGpu { reason } => write!(f, "no CUDA: {reason}"),
            CudaStatus::Failed { reason } => {
                write!(f, "no CUDA: libtorch_cuda.so does not load: {reason}")
            }
        }
    }
}

/// The library libtorch_cuda, once it is loaded.
static LIBTORCH_CUDA: OnceLock<Library> = OnceLock::new();

/// Loads libtorch_cuda if it lies beside the libtorch_cpu of this process and there is a driver
/// with GPUs.
///
/// Call it first in `main`. It does no harm without CUDA. Later calls return the first result.
pub fn load() -> &'static CudaStatus {
    static STATUS: OnceLock<CudaStatus> = OnceLock::new();
    STATUS.get_or_init(first_load)
}

fn first_load() -> CudaStatus {
    let Some(folder) = libtorch_folder() else {
        return CudaStatus::Failed {
            reason: "cannot tell where libtorch_cpu was loaded from".into(),
        };
    };
    let libraries = [folder.join("libc10_cuda.so"), folder.join("libtorch_cuda.so")];
    if libraries.iter().any(|library| !library.exists()) {
        // Only GPUs make this a fault: packages of libraries bring the driver to other machines.
        let gpus = Driver::ask().map_or(0, |driver| driver.gpus.len());
        return CudaStatus::NoLibrary { folder, gpus };
    }
    // libtorch_cuda has half a gigabyte, so it is not loaded without a driver.
    let driver = match Driver::ask() {
        Ok(driver) => driver,
        Err(DriverError::Missing) => return CudaStatus::NoDriver,
        Err(DriverError::Broken(reason)) => {
            let reason = format!("the NVIDIA driver does not work: {reason}; try nvidia-smi");
            return CudaStatus::NoGpu { reason };
        }
    };
    if driver.gpus.is_empty() {
        return CudaStatus::NoGpu { reason: no_gpu_in(&driver) };
    }
    for library in &libraries {
        match Library::open(library) {
            Ok(loaded) if library.ends_with("libtorch_cuda.so") => {
                LIBTORCH_CUDA.get_or_init(|| loaded);
            }
            Ok(_) => {}
            Err(reason) => return CudaStatus::Failed { reason },
        }
    }
    match tch::Cuda::device_count() {
        0 => CudaStatus::NoGpu { reason: unusable(&driver, runtime_version()) },
        _ => CudaStatus::Loaded(driver),
    }
}

fn no_gpu_in(driver: &Driver) -> String {
    let hidden = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    match hidden {
        Some(value) => format!(
            "the NVIDIA driver (CUDA {}) shows no GPU, and CUDA_VISIBLE_DEVICES is `{value}`",
            driver.cuda
        ),
        None => format!("the NVIDIA driver (CUDA {}) finds no GPU", driver.cuda),
    }
}

/// The reason why libtorch does not use the GPUs that the driver has.
fn unusable(driver: &Driver, runtime: Option<CudaVersion>) -> String {
    match runtime {
        Some(runtime) if runtime.major > driver.cuda.major => format!(
            "the NVIDIA driver supports CUDA {}, and libtorch needs CUDA {runtime}; update the \
             driver, or set LIBTORCH to a libtorch for CUDA {}",
            driver.cuda, driver.cuda.major
        ),
        _ => format!(
            "libtorch sees none of the driver's GPUs ({}); it may be too new or too old for them",
            driver.gpus.join(", ")
        ),
    }
}

/// The version of CUDA's runtime that libtorch_cuda was loaded with.
fn runtime_version() -> Option<CudaVersion> {
    type GetVersion = unsafe extern "C" fn(*mut i32) -> i32;
    let symbol = LIBTORCH_CUDA.get()?.function(c"cudaRuntimeGetVersion")?;
    let mut number = 0;
    // SAFETY: CUDA's headers declare the function so, and the pointer is to a live integer.
    let status =
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, GetVersion>(symbol)(&mut number) };
    (status == 0).then(|| CudaVersion::from_number(number))
}

/// The folder of this process's libtorch.
pub fn libtorch_folder() -> Option<PathBuf> {
    // SAFETY: returns null or a string that the dynamic loader keeps for the life of the process.
    let path = unsafe {
        let path = ffi::bm_libtorch_cpu_path();
        if path.is_null() {
            return None;
        }
        CStr::from_ptr(path)
    };
    let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    path.parent().map(Path::to_path_buf)
}

/// A unique name of a GPU on this machine: its address on the PCI bus, which does not depend on
/// `CUDA_VISIBLE_DEVICES`. `None` if CUDA is not loaded or there is no such GPU.
pub fn bus_id(gpu: usize) -> Option<String> {
    type GetBusId = unsafe extern "C" fn(*mut std::ffi::c_char, i32, i32) -> i32;
    // Not by any library of the process: libtorch_cpu, too, brings a CUDA runtime.
    let symbol = LIBTORCH_CUDA.get()?.function(c"cudaDeviceGetPCIBusId")?;
    // SAFETY: CUDA's headers declare the function so.
    let get_bus_id = unsafe { std::mem::transmute::<*mut std::ffi::c_void, GetBusId>(symbol) };
    let mut name = [0u8; 32];
    // SAFETY: the pointer has the given number of bytes, the last of them for the end of the
    // string.
    let status = unsafe {
        get_bus_id(name.as_mut_ptr().cast(), name.len() as i32 - 1, i32::try_from(gpu).ok()?)
    };
    let name = CStr::from_bytes_until_nul(&name).ok()?.to_str().ok()?;
    (status == 0 && !name.is_empty()).then(|| name.to_string())
}

/// The name of a GPU, such as `NVIDIA H100`. `None` if CUDA is not loaded or there is no such GPU.
pub fn gpu_name(gpu: usize) -> Option<&'static str> {
    match load() {
        CudaStatus::Loaded(driver) => driver.gpus.get(gpu).map(String::as_str),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_is_harmless_and_repeatable() {
        let first = load();
        assert_eq!(first, load());
        if !matches!(first, CudaStatus::Loaded(_)) {
            assert!(first.to_string().starts_with("no CUDA: "), "{first}");
        }
        let sum = tch::Tensor::from_slice(&[1.0f32, 2.0]).sum(None);
        assert_eq!(sum.double_value(&[]), 3.0);
    }

    #[test]
    fn a_gpu_that_is_not_there_has_no_name() {
        assert_eq!(bus_id(99), None);
        assert_eq!(gpu_name(99), None);
    }

    #[test]
    fn the_folder_holds_libtorch() {
        let folder = libtorch_folder().unwrap();
        let has = |name: &str| folder.join(name).exists();
        assert!(has("libtorch_cpu.so") || has("libtorch_cpu.dylib"), "{}", folder.display());
    }

    #[test]
    fn a_gpu_that_cannot_be_used_has_a_reason() {
        let version = |major, minor| CudaVersion { major, minor };
        let driver = Driver { cuda: version(12, 4), gpus: vec!["Tesla T4".into()] };
        assert_eq!(
            unusable(&driver, Some(version(13, 0))),
            "the NVIDIA driver supports CUDA 12.4, and libtorch needs CUDA 13.0; update the \
             driver, or set LIBTORCH to a libtorch for CUDA 12"
        );
        assert_eq!(
            unusable(&driver, Some(version(12, 6))),
            "libtorch sees none of the driver's GPUs (Tesla T4); it may be too new or too old for \
             them"
        );
        let loaded = CudaStatus::Loaded(driver);
        assert_eq!(loaded.to_string(), "CUDA 12.4 driver, cuda:0 Tesla T4");
        assert!(!loaded.is_fault() && !CudaStatus::NoDriver.is_fault());
    }

    #[test]
    fn a_libtorch_for_cpus_is_a_fault_where_there_are_gpus() {
        let status = |gpus| CudaStatus::NoLibrary { folder: "/opt/torch/lib".into(), gpus };
        assert_eq!(status(0).to_string(), "no CUDA: /opt/torch/lib holds no libtorch_cuda.so");
        assert!(!status(0).is_fault());
        assert_eq!(
            status(2).to_string(),
            "no CUDA: the driver has 2 GPUs, but /opt/torch/lib holds no libtorch_cuda.so: install \
             a libtorch for CUDA"
        );
        assert!(status(1).to_string().contains("has 1 GPU, but"));
        assert!(status(1).is_fault());
    }
}
