//! Conversion of tensors to the tensors of tasks and back, and of errors to failures.

use crate::compute::device_tensor::{on_device, to_task_tensor};
use crate::compute::task_location::TaskLocation;
use crate::engine::{EngineError, TensorsByStage};
use bytes::Bytes;
use layerspec::DType;
use link::Payload;
use pipeline::ids::StageId;
use pipeline::message::{Failure, FailureKind};
use pipeline::task::{EarlyOutput, Outcome};
use pipeline::TensorMeta;
use runtime::TaskTensor;
use tch::Tensor;
use tensor::{payload, TensorError};

/// A tensor on the host or on this worker's device.
pub(crate) fn to_tensor(tensor: &TaskTensor) -> Result<Tensor, TensorError> {
    let payload = match tensor {
        TaskTensor::Host(payload) => payload,
        TaskTensor::Device(tensor) => return on_device(tensor.as_ref()),
    };
    let size = |d: &u64| {
        i64::try_from(*d).map_err(|_| TensorError::invalid("receive", format!("a size of {d}")))
    };
    let shape = payload.meta.shape.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    payload::from_bytes(payload.meta.dtype, &shape, payload.bytes.clone())
}

pub(crate) fn to_payload(tensor: &Tensor) -> Result<Payload, TensorError> {
    Ok(Payload { meta: meta_of(tensor)?, bytes: payload::to_bytes(tensor)? })
}

pub(crate) fn meta_of(tensor: &Tensor) -> Result<TensorMeta, TensorError> {
    let dtype: DType = tensor::dtype_of(tensor)?;
    let shape = tensor.size().into_iter().map(|d| d.unsigned_abs()).collect();
    Ok(TensorMeta { dtype, shape })
}

pub(crate) fn to_tensors(payloads: &[TaskTensor]) -> Result<Vec<Tensor>, Failure> {
    payloads.iter().map(to_tensor).collect::<Result<_, _>>().map_err(tensor_failure)
}

pub(super) fn to_task_tensors(
    tensors: &[Tensor],
    maker: TaskLocation,
) -> Result<Vec<TaskTensor>, Failure> {
    let all = tensors.iter().map(|tensor| to_task_tensor(tensor, maker));
    all.collect::<Result<_, _>>().map_err(tensor_failure)
}

/// Converts nested lists.
pub(super) fn nested<T>(
    lists: &[Vec<TaskTensor>],
    each: impl Fn(&[TaskTensor]) -> Result<Vec<T>, Failure>,
) -> Result<Vec<Vec<T>>, Failure> {
    lists.iter().map(|list| each(list)).collect()
}

/// Converts sums of gradients, which may be compressed.
pub(crate) fn decompressed_sums(sums: &[TaskTensor]) -> Result<Vec<Tensor>, Failure> {
    let sum = |sum: &TaskTensor| {
        let sum = runtime::decompress(&sum.to_host()?).map_err(Failure::new)?;
        to_tensor(&sum.into()).map_err(tensor_failure)
    };
    sums.iter().map(sum).collect()
}

/// The results of an engine, in the form in which they leave it.
pub(super) fn to_task_output(
    out: EarlyOutput<Tensor>,
    maker: TaskLocation,
) -> Result<EarlyOutput<TaskTensor>, TensorError> {
    let mut problem = None;
    let empty = || Payload {
        meta: TensorMeta { dtype: DType::Float32, shape: vec![0] },
        bytes: Bytes::new(),
    };
    let out = out.map(|tensor| {
        to_task_tensor(&tensor, maker).unwrap_or_else(|e| {
            problem.get_or_insert(e);
            empty().into()
        })
    });
    problem.map_or(Ok(out), Err)
}

pub(crate) fn to_tensors_by_stage(
    payloads: &[(StageId, Vec<TaskTensor>)],
) -> Result<TensorsByStage, Failure> {
    payloads.iter().map(|(stage, list)| Ok((*stage, to_tensors(list)?))).collect()
}

pub(super) fn tied_outcome(
    tensors: &TensorsByStage,
    maker: TaskLocation,
) -> Result<Outcome<TaskTensor>, Failure> {
    let each = tensors.iter().map(|(stage, list)| Ok((*stage, to_task_tensors(list, maker)?)));
    Ok(Outcome::Tied { tensors: each.collect::<Result<_, Failure>>()? })
}

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
}
