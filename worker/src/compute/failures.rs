//! Errors of tensors and of the engine as failures of tasks.

use crate::engine::EngineError;
use pipeline::message::{Failure, FailureKind};
use tensor::nccl::NcclError;
use tensor::TensorError;

pub(crate) fn tensor_failure(e: TensorError) -> Failure {
    Failure { kind: failure_kind(&e), ..Failure::new(with_remedy(e.to_string())) }
}

/// Replaces libtorch's remedy for an operation without a deterministic kernel, which names calls of
/// Python, by ours.
fn with_remedy(error: String) -> String {
    const LACK: &str = " does not have a deterministic implementation";
    match error.split_once(LACK) {
        Some((operation, _)) => format!(
            "{operation}{LACK} on GPUs; set `determinism: fast` in the run file \
             (Builder::determinism) to use the one there is: results may then differ in their last \
             bits from run to run"
        ),
        None => error,
    }
}

fn failure_kind(e: &TensorError) -> FailureKind {
    if e.is_out_of_memory() {
        FailureKind::OutOfMemory
    } else if e.is_device_broken() {
        FailureKind::DeviceBroken
    } else {
        FailureKind::Other
    }
}

pub(crate) fn nccl_failure(error: &NcclError) -> Failure {
    match error {
        NcclError::Device(error) => tensor_failure(error.clone()),
        full if full.is_out_of_memory() => {
            Failure { kind: FailureKind::OutOfMemory, ..Failure::new(full.to_string()) }
        }
        broken if broken.is_device_broken() => {
            Failure { kind: FailureKind::DeviceBroken, ..Failure::new(broken.to_string()) }
        }
        other => Failure::new(other.to_string()),
    }
}

pub(crate) fn engine_failure(e: EngineError) -> Failure {
    match e {
        EngineError::Layer { layer, kind, source, .. } => {
            Failure { layer: Some(format!("{layer} ({kind})")), ..tensor_failure(source) }
        }
        EngineError::NotFinite { layer, kind, what } => Failure {
            layer: Some(format!("{layer} ({kind})")),
            kind: FailureKind::NotFinite,
            ..Failure::new(what)
        },
        EngineError::Tensor(source) => tensor_failure(source),
        EngineError::Loss { ref source, .. } => {
            Failure { kind: failure_kind(source), ..Failure::new(with_remedy(e.to_string())) }
        }
        EngineError::AllReduce(source) => nccl_failure(&source),
        other => Failure::new(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_without_a_deterministic_kernel_has_a_remedy() {
        let text = "put_ does not have a deterministic implementation, but you set \
                    'torch.use_deterministic_algorithms(True)'.";
        assert_eq!(
            tensor_failure(TensorError::invalid("forward", text)).message,
            "forward: put_ does not have a deterministic implementation on GPUs; set \
             `determinism: fast` in the run file (Builder::determinism) to use the one there is: \
             results may then differ in their last bits from run to run"
        );
        assert_eq!(tensor_failure(TensorError::invalid("forward", "no")).message, "forward: no");
    }

    #[test]
    fn nccl_without_memory_or_on_a_broken_device_is_told_from_a_lost_replica() {
        let kind = |reason: &str| {
            let attempted = "the sum of gradients";
            nccl_failure(&NcclError::Call { attempted, reason: reason.into() }).kind
        };
        assert_eq!(kind("Failed to CUDA malloc 4194304 bytes"), FailureKind::OutOfMemory);
        assert_eq!(kind("Cuda failure 2 'out of memory'"), FailureKind::OutOfMemory);
        let broken = "(Cuda failure 'an illegal memory access was encountered')";
        assert_eq!(kind(broken), FailureKind::DeviceBroken);
        assert_eq!(kind("unhandled system error"), FailureKind::Other);
    }
}
