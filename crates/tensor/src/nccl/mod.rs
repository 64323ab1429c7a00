//! NCCL, loaded at run time: sums of tensors over the GPUs of several processes.
//!
//! Nothing of it is needed to build, and where there is no library an error says so. The functions used are few, and called
//! through `libloading`: the `cudarc` crate has all of NCCL, but looks the library up by names of its own, wants every symbol
//! of the one version it was made for, and panics where the library or one of them is missing.
//!
//! Operations go to CUDA's default stream, on which `tch` works too (and that is checked): so what libtorch was told before is
//! done before, and what it is told after is done after. Every rank must call for the same operations in the same order.
//!
//! What connects the ranks is neither encrypted nor authenticated; see [`restrict_to_loopback`].

mod communicator;
mod error;
mod symbols;

pub use communicator::{Communicator, IsInterrupted};
pub use error::NcclError;

use std::path::Path;
use std::sync::Arc;
use symbols::Symbols;
use tch::Device;

/// The name of the library for the dynamic loader.
const NAME: &str = "libnccl.so.2";
/// The first version with communicators whose calls do not block, 2.14.
const MIN_VERSION: u32 = 21_400;
/// The loopback interface and no other whose name begins so.
const LOOPBACK: &str = "=lo";
const INTERFACE: &str = "NCCL_SOCKET_IFNAME";
const NETWORK: &str = "NCCL_NET";

/// Bytes of what the ranks of a communicator find each other by.
pub const UNIQUE_ID_BYTES: usize = 128;

/// The library.
#[derive(Debug)]
pub struct Nccl {
    symbols: Symbols,
    version: u32,
    /// Whether it sums what is in the host's memory, and not in a GPU's.
    on_host: bool,
}

impl Nccl {
    /// Loads the library: this file, or the one that the dynamic loader finds as `libnccl.so.2`. Where libtorch's CUDA half is
    /// loaded, that is the one which libtorch came with.
    ///
    /// # Errors
    /// There is no such library, it is too old, or something else.
    pub fn load(file: Option<&Path>) -> Result<Arc<Self>, NcclError> {
        Self::open(file.unwrap_or(Path::new(NAME)), false)
    }

    /// Loads a library with NCCL's functions that sums what is in the host's memory, which NCCL itself does not: a stand-in,
    /// for tests on machines without GPUs.
    ///
    /// # Errors
    /// As for [`Nccl::load`].
    pub fn load_for_host(file: &Path) -> Result<Arc<Self>, NcclError> {
        Self::open(file, true)
    }

    fn open(file: &Path, on_host: bool) -> Result<Arc<Self>, NcclError> {
        let symbols = Symbols::load(file)?;
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        let status = unsafe { (symbols.get_version)(&mut version) };
        symbols.check("asking for NCCL's version", status)?;
        match u32::try_from(version) {
            Ok(version) if version >= MIN_VERSION => Ok(Arc::new(Nccl { symbols, version, on_host })),
            found => {
                Err(NcclError::TooOld { file: file.to_path_buf(), found: found.unwrap_or(0), oldest: MIN_VERSION })
            }
        }
    }

    /// As NCCL numbers its versions: 22703 for 2.27.3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether it sums tensors on such a device.
    pub fn supports(&self, device: Device) -> bool {
        matches!((device, self.on_host), (Device::Cuda(_), false) | (Device::Cpu, true))
    }

    /// The id by which the ranks of one communicator find each other. The rank that makes it
    /// listens for the others from now on.
    ///
    /// # Errors
    /// NCCL finds no network interface to listen on, or no driver.
    pub fn unique_id(&self) -> Result<[u8; UNIQUE_ID_BYTES], NcclError> {
        let mut id = symbols::UniqueId { bytes: [0; UNIQUE_ID_BYTES] };
        // SAFETY: the pointer is to a live struct of NCCL's size.
        let status = unsafe { (self.symbols.get_unique_id)(&mut id) };
        self.symbols.check("making the id of a communicator", status)?;
        Ok(id.bytes)
    }
}

/// A version as NCCL's users know it: `2.27.3`.
pub fn version_name(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Has NCCL connect over the loopback interface alone, unless `NCCL_SOCKET_IFNAME` names interfaces already. Whether it may
/// connect to other machines then.
///
/// NCCL's connections are neither encrypted nor authenticated, so only who owns the machine can say that some network is
/// trusted. Call it first thing in `main`: it sets variables of the environment, which no other thread may be reading.
pub fn restrict_to_loopback() -> bool {
    // Else a call could block, and could not be called off; or another address would count than that of the interface.
    std::env::set_var("NCCL_COMM_BLOCKING", "0");
    std::env::remove_var("NCCL_COMM_ID");
    if std::env::var_os(INTERFACE).is_some_and(|named| !named.is_empty() && named != LOOPBACK) {
        return true;
    }
    std::env::set_var(INTERFACE, LOOPBACK);
    // Neither InfiniBand nor a plug-in, which have interfaces of their own.
    std::env::set_var(NETWORK, "Socket");
    false
}

/// What processes with the same loopback interface have alike, and no others; empty where that cannot be found out.
pub fn machine_id() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let network = std::fs::read_link("/proc/self/ns/net");
    match (boot, network) {
        (Ok(boot), Ok(network)) => format!("{} {}", boot.trim(), network.display()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_they_are_known() {
        assert_eq!([21_400, 22_703, 23_100].map(version_name), ["2.14.0", "2.27.3", "2.31.0"]);
    }

    #[test]
    fn this_process_is_on_the_machine_that_it_was_on() {
        assert_eq!(machine_id(), machine_id());
    }

    #[test]
    fn what_is_no_library_is_an_error() {
        let missing = Nccl::load(Some(Path::new("/nowhere/libnccl.so.2"))).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/libnccl.so.2"), "{missing}");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let wrong = Nccl::load(Some(&file)).unwrap_err();
        assert!(matches!(wrong, NcclError::Load { .. }) && wrong.to_string().contains("Cargo.toml"), "{wrong}");
        // It is a library, and another one.
        let folder = crate::cuda::libtorch_folder().unwrap();
        let other = Nccl::load(Some(&folder.join("libc10.so"))).unwrap_err();
        assert!(other.to_string().contains("libc10.so") && other.to_string().contains("ncclGetVersion"), "{other}");
    }
}
