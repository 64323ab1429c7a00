//! This worker's statement about its NCCL.

use crate::options::Options;
use link::{Nccl, NcclInfo};
use std::sync::Arc;
use tch::Device;
use tensor::nccl;

/// The library, where it computes with CUDA, and what the boss is told. `beyond_machine` says whether NCCL may connect to other
/// machines.
pub(crate) fn load_nccl(options: &Options, device: Device, beyond_machine: bool) -> (Option<Arc<nccl::Nccl>>, Nccl) {
    let name = tensor::device::name(device);
    let Device::Cuda(gpu) = device else {
        return (None, Nccl::Missing(format!("it computes on {name}, and NCCL sums on GPUs with CUDA")));
    };
    match nccl::Nccl::load(options.nccl.as_deref()) {
        Ok(library) => {
            let gpu = tensor::cuda::bus_id(gpu).unwrap_or_default();
            let info = NcclInfo { version: library.version(), machine: nccl::machine_id(), gpu, beyond_machine };
            (Some(library), Nccl::Here(info))
        }
        Err(error) => (None, Nccl::Missing(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn who_has_no_cuda_says_so_and_loads_nothing() {
        let options = Options::parse_from(["worker", "--nccl", "/nowhere/libnccl.so.2"]);
        let (library, nccl_info) = load_nccl(&options, Device::Cpu, false);
        assert!(library.is_none());
        assert_eq!(nccl_info, Nccl::Missing("it computes on cpu, and NCCL sums on GPUs with CUDA".into()));
    }

    #[test]
    fn who_has_no_library_says_which_it_looked_for() {
        let options = Options::parse_from(["worker", "--nccl", "/nowhere/libnccl.so.2"]);
        let (library, nccl_info) = load_nccl(&options, Device::Cuda(0), false);
        assert!(library.is_none());
        assert!(matches!(&nccl_info, Nccl::Missing(why) if why.contains("/nowhere/libnccl.so.2")), "{nccl_info:?}");
    }
}
