//! The library NCCL, loaded at run time.

use crate::nccl::error::NcclError;
use crate::nccl::symbols::{Symbols, UniqueId};
use crate::nccl::version::{MIN_VERSION, UNIQUE_ID_BYTES};
use std::path::Path;
use std::sync::Arc;
use tch::Device;

/// The name of the library for the dynamic loader.
const NAME: &str = "libnccl.so.2";

/// The memory whose tensors a library sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SummedMemory {
    Gpu,
    /// A stand-in for tests.
    Host,
}

/// The library.
#[derive(Debug)]
pub struct Nccl {
    pub(super) symbols: Symbols,
    version: u32,
    memory: SummedMemory,
}

impl Nccl {
    /// Loads the library: this file, or the one that the dynamic loader finds as `libnccl.so.2`.
    /// If libtorch's CUDA half is loaded, that is the library that libtorch came with.
    ///
    /// # Errors
    /// There is no such library, it is too old, or it is not NCCL.
    pub fn load(file: Option<&Path>) -> Result<Arc<Self>, NcclError> {
        Self::open(file.unwrap_or(Path::new(NAME)), SummedMemory::Gpu)
    }

    /// Loads a stand-in with NCCL's functions that sums tensors in the host's memory, for tests on
    /// machines without GPUs. NCCL itself does not sum there.
    ///
    /// # Errors
    /// As for [`Nccl::load`].
    pub fn load_for_host(file: &Path) -> Result<Arc<Self>, NcclError> {
        Self::open(file, SummedMemory::Host)
    }

    fn open(file: &Path, memory: SummedMemory) -> Result<Arc<Self>, NcclError> {
        let symbols = Symbols::load(file)?;
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        let status = unsafe { (symbols.get_version)(&mut version) };
        symbols.check("asking for NCCL's version", status)?;
        match u32::try_from(version) {
            Ok(version) if version >= MIN_VERSION => {
                Ok(Arc::new(Nccl { symbols, version, memory }))
            }
            found => Err(NcclError::TooOld {
                file: file.to_path_buf(),
                found: found.unwrap_or(0),
                oldest: MIN_VERSION,
            }),
        }
    }

    /// As NCCL numbers its versions: 22703 for 2.27.3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether it sums tensors on such a device.
    pub fn supports(&self, device: Device) -> bool {
        matches!(
            (device, self.memory),
            (Device::Cuda(_), SummedMemory::Gpu) | (Device::Cpu, SummedMemory::Host)
        )
    }

    /// The id by which the ranks of one communicator find each other. The rank that makes it
    /// listens for the others from now on.
    ///
    /// # Errors
    /// NCCL finds no network interface to listen on, or no driver.
    pub fn unique_id(&self) -> Result<[u8; UNIQUE_ID_BYTES], NcclError> {
        let mut id = UniqueId { bytes: [0; UNIQUE_ID_BYTES] };
        // SAFETY: the pointer is to a live struct of NCCL's size.
        let status = unsafe { (self.symbols.get_unique_id)(&mut id) };
        self.symbols.check("making the id of a communicator", status)?;
        Ok(id.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_is_an_error() {
        let missing = Nccl::load(Some(Path::new("/nowhere/libnccl.so.2"))).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/libnccl.so.2"), "{missing}");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let wrong = Nccl::load(Some(&file)).unwrap_err();
        assert!(
            matches!(wrong, NcclError::Load { .. }) && wrong.to_string().contains("Cargo.toml"),
            "{wrong}"
        );
        // It is a library, but not NCCL.
        let folder = crate::cuda::libtorch_folder().unwrap();
        let other = Nccl::load(Some(&folder.join("libc10.so"))).unwrap_err();
        assert!(
            other.to_string().contains("libc10.so") && other.to_string().contains("ncclGetVersion"),
            "{other}"
        );
    }
}
