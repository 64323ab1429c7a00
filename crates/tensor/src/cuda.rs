//! Loading libtorch's CUDA half at run time.
//!
//! A binary linked against libtorch names only libtorch_cpu, so that it starts on machines that
//! have no CUDA libraries. If they lie beside it, loading them registers the GPU with libtorch.
//! That must happen before libtorch is first asked about GPUs: it remembers the answer.

use crate::ffi;
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The result of [`load`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CudaStatus {
    /// The libraries are loaded; this many GPUs can be used.
    Loaded {
        /// GPUs that libtorch sees; 0 if the driver hides them all.
        gpus: usize,
    },
    /// No libtorch_cuda beside libtorch_cpu: a libtorch for CPUs only.
    NoLibrary {
        /// The folder in which it was expected.
        folder: PathBuf,
    },
    /// The library exists, but this machine has no NVIDIA driver, so it was not loaded.
    NoDriver,
    /// The library exists but cannot be loaded.
    Failed {
        /// The loader's message. Usually one of NVIDIA's libraries is missing.
        reason: String,
    },
}

impl fmt::Display for CudaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaStatus::Loaded { gpus } => write!(f, "CUDA loaded, {gpus} GPU(s)"),
            CudaStatus::NoLibrary { folder } => {
                write!(f, "no CUDA: {} holds no libtorch_cuda.so", folder.display())
            }
            CudaStatus::NoDriver => {
                f.write_str("no CUDA: this machine has no NVIDIA driver (libcuda.so.1)")
            }
            CudaStatus::Failed { reason } => {
                write!(f, "no CUDA: libtorch_cuda.so does not load: {reason}")
            }
        }
    }
}

/// Loads libtorch_cuda if it lies beside the libtorch_cpu of this process and there is a driver.
///
/// Call it first in `main`. It does no harm without CUDA, or when called again.
pub fn load() -> CudaStatus {
    let Some(folder) = libtorch_folder() else {
        return CudaStatus::Failed {
            reason: "cannot tell where libtorch_cpu was loaded from".into(),
        };
    };
    let libraries = [folder.join("libc10_cuda.so"), folder.join("libtorch_cuda.so")];
    if libraries.iter().any(|library| !library.exists()) {
        return CudaStatus::NoLibrary { folder };
    }
    // libtorch_cuda has half a gigabyte, so it is not loaded without a driver.
    if open(Path::new("libcuda.so.1")).is_err() {
        return CudaStatus::NoDriver;
    }
    for library in &libraries {
        if let Err(reason) = open(library) {
            return CudaStatus::Failed { reason };
        }
    }
    CudaStatus::Loaded { gpus: usize::try_from(tch::Cuda::device_count()).unwrap_or(0) }
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
    // SAFETY: what libtorch_cuda has loaded is searched for the function, whose declaration in
    // CUDA's headers is this type.
    let get_bus_id = unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"cudaDeviceGetPCIBusId".as_ptr());
        (!symbol.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, GetBusId>(symbol))
    }?;
    let mut name = [0u8; 32];
    // SAFETY: the pointer has the given number of bytes, the last of them for the end of the
    // string.
    let status = unsafe {
        get_bus_id(name.as_mut_ptr().cast(), name.len() as i32 - 1, i32::try_from(gpu).ok()?)
    };
    let name = CStr::from_bytes_until_nul(&name).ok()?.to_str().ok()?;
    (status == 0 && !name.is_empty()).then(|| name.to_string())
}

fn open(library: &Path) -> Result<(), String> {
    let name = CString::new(library.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: `name` is NUL-terminated. The library's initialisers run here; these are libtorch's
    // own, made to be loaded this way. The handle is kept open on purpose: what they registered
    // stays for the life of the process. `dlerror` is read on the thread that failed.
    unsafe {
        if libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL).is_null() {
            let message = libc::dlerror();
            return Err(if message.is_null() {
                "no reason given".into()
            } else {
                CStr::from_ptr(message).to_string_lossy().into_owned()
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_is_harmless_and_repeatable() {
        let first = load();
        assert_eq!(first, load());
        if !matches!(first, CudaStatus::Loaded { .. }) {
            assert!(first.to_string().starts_with("no CUDA: "), "{first}");
        }
        let sum = tch::Tensor::from_slice(&[1.0f32, 2.0]).sum(None);
        assert_eq!(sum.double_value(&[]), 3.0);
    }

    #[test]
    fn a_gpu_that_is_not_there_has_no_name() {
        assert_eq!(bus_id(99), None);
    }

    #[test]
    fn the_folder_holds_libtorch() {
        let folder = libtorch_folder().unwrap();
        let has = |name: &str| folder.join(name).exists();
        assert!(has("libtorch_cpu.so") || has("libtorch_cpu.dylib"), "{}", folder.display());
    }

    #[test]
    fn a_library_that_is_missing_gives_the_loaders_reason() {
        let reason = open(Path::new("/nowhere/libtorch_cuda.so")).unwrap_err();
        assert!(reason.contains("/nowhere/libtorch_cuda.so"), "{reason}");
    }
}
