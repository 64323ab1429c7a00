//! This worker's statement about its NCCL.

use crate::program::options::Options;
use link::{Nccl, NcclInfo};
use std::sync::Arc;
use tch::Device;
use tensor::nccl;

/// The networks that NCCL may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NcclNetwork {
    /// The loopback interface alone.
    Loopback,
    /// Interfaces that the worker's owner named.
    BeyondMachine,
}

impl NcclNetwork {
    /// Restricts NCCL to the loopback interface, unless the owner named others. Call it before
    /// other threads start, because it sets environment variables.
    pub(crate) fn restrict() -> Self {
        match nccl::restrict_to_loopback() {
            true => NcclNetwork::BeyondMachine,
            false => NcclNetwork::Loopback,
        }
    }
}

/// NCCL of this worker.
pub(crate) struct LoadedNccl {
    /// The library, if the worker computes with CUDA and has one.
    pub(crate) library: Option<Arc<nccl::Nccl>>,
    /// The report for the boss.
    pub(crate) report: Nccl,
}

/// Loads the library, if the worker computes with CUDA.
pub(crate) fn load_nccl(options: &Options, device: Device, network: NcclNetwork) -> LoadedNccl {
    let Device::Cuda(gpu) = device else {
        let name = tensor::device::name(device);
        let reason = format!("it computes on {name}, and NCCL sums on GPUs with CUDA");
        return LoadedNccl { library: None, report: Nccl::Missing(reason) };
    };
    match nccl::Nccl::load(options.nccl.as_deref()) {
        Ok(library) => {
            let info = NcclInfo {
                version: library.version(),
                machine: nccl::machine_id(),
                gpu: tensor::cuda::bus_id(gpu).unwrap_or_default(),
                beyond_machine: network == NcclNetwork::BeyondMachine,
            };
            LoadedNccl { library: Some(library), report: Nccl::Here(info) }
        }
        Err(error) => LoadedNccl { library: None, report: Nccl::Missing(error.to_string()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn who_has_no_cuda_says_so_and_loads_nothing() {
        let options = Options::parse_from(["worker", "--nccl", "/nowhere/libnccl.so.2"]);
        let loaded = load_nccl(&options, Device::Cpu, NcclNetwork::Loopback);
        assert!(loaded.library.is_none());
        assert_eq!(
            loaded.report,
            Nccl::Missing("it computes on cpu, and NCCL sums on GPUs with CUDA".into())
        );
    }

    #[test]
    fn who_has_no_library_says_which_it_looked_for() {
        let options = Options::parse_from(["worker", "--nccl", "/nowhere/libnccl.so.2"]);
        let loaded = load_nccl(&options, Device::Cuda(0), NcclNetwork::Loopback);
        assert!(loaded.library.is_none());
        assert!(
            matches!(&loaded.report, Nccl::Missing(why) if why.contains("/nowhere/libnccl.so.2")),
            "{:?}",
            loaded.report
        );
    }
}
