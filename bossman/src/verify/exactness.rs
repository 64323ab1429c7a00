//! What a repetition of a run can show.

use crate::receipt::{Receipt, SessionWorker};
use crate::run_file::RunFile;
use pipeline::replicas::Collective;
use pipeline::Determinism;

/// What a repetition of a run can show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// Equal losses, digests and tensors, to the bit, on processors of this kind.
    Bits {
        /// The kind of processor.
        processor: String,
        /// The threads of each worker.
        threads: u32,
    },
    /// Nothing: the same run would give other bits. Hashes are compared all the same.
    Nothing {
        /// The reason.
        why: String,
    },
}

impl Exactness {
    pub(super) fn of(file: &RunFile, receipt: &Receipt) -> Self {
        let nothing = |why: &str| Exactness::Nothing { why: why.into() };
        if file.compress.is_some() {
            return nothing("`compress` rounds gradients as they are shared among replicas");
        }
        if file.fast_reduction {
            return nothing("`reduction: fast` sums gradients as microbatches are shared");
        }
        let mut workers = receipt.sessions.iter().flat_map(|session| &session.workers);
        let uses_gpus = workers.clone().any(|worker| worker.device.starts_with("cuda"));
        if uses_gpus && file.determinism == Determinism::Fast {
            return nothing("`determinism: fast` lets GPUs use kernels that round in another way");
        }
        let may_use_nccl = match file.collective {
            Collective::Nccl => true,
            Collective::Quic => false,
            Collective::Auto => uses_gpus,
        };
        if may_use_nccl && file.replicas.is_some() {
            return nothing("NCCL sums gradients in an order of its own");
        }
        let Some(SessionWorker { processor, threads, .. }) = workers.next() else {
            return nothing("the receipt names no worker");
        };
        if workers.clone().any(|worker| worker.threads != *threads) {
            return nothing("its workers had unequal numbers of threads");
        }
        if workers.any(|worker| worker.processor != *processor) {
            return nothing("its workers had processors of several kinds");
        }
        Exactness::Bits { processor: processor.clone(), threads: *threads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::replicas::Replicas;

    #[test]
    fn unequal_workers_and_inexact_sums_give_other_bits() {
        let file = RunFile::from_file("../examples/digits/run.yaml").unwrap();
        let receipt = crate::receipt::example();
        let bits = Exactness::of(&file, &receipt);
        assert_eq!(bits, Exactness::Bits { processor: "x86_64".into(), threads: 2 });
        let why = |file: &RunFile, receipt: &Receipt| match Exactness::of(file, receipt) {
            Exactness::Nothing { why } => why,
            bits => panic!("{bits:?}"),
        };
        let fast = RunFile { fast_reduction: true, ..file.clone() };
        assert!(why(&fast, &receipt).contains("`reduction: fast`"));
        let replicas = Some(Replicas::Each(2));
        let nccl = RunFile { collective: Collective::Nccl, replicas, ..file.clone() };
        assert!(why(&nccl, &receipt).contains("NCCL"));
        let mut on_gpu = receipt.clone();
        on_gpu.sessions[0].workers[0].device = "cuda:0".into();
        let fast = RunFile { determinism: Determinism::Fast, ..file.clone() };
        assert!(why(&fast, &on_gpu).contains("`determinism: fast`"));
        assert_eq!(Exactness::of(&fast, &receipt), Exactness::of(&file, &receipt));
        let mut other = receipt.clone();
        let worker = other.sessions[0].workers[0].clone();
        other.sessions[0].workers.push(SessionWorker { threads: 3, ..worker.clone() });
        assert!(why(&file, &other).contains("threads"));
        let mut other = receipt.clone();
        other.sessions[0].workers.push(SessionWorker { processor: "arm".into(), ..worker });
        assert!(why(&file, &other).contains("several kinds"));
    }
}
