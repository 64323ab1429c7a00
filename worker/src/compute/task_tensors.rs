//! Conversion of tensors to the tensors of tasks and back.

use crate::compute::device_tensor::{on_device, to_task_tensor};
use crate::compute::failures::tensor_failure;
use crate::compute::task_location::TaskLocation;
use crate::engine::TensorsByStage;
use bytes::Bytes;
use layerspec::DType;
use link::Payload;
use pipeline::ids::StageId;
use pipeline::message::Failure;
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
