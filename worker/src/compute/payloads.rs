//! Conversion of tensors to bytes and back, and of errors to failures.

use crate::engine::{EngineError, TensorsByStage};
use bytes::Bytes;
use layerspec::DType;
use link::Payload;
use pipeline::ids::StageId;
use pipeline::message::{Failure, FailureKind};
use pipeline::task::{EarlyOutput, Outcome};
use pipeline::TensorMeta;
use tch::Tensor;
use tensor::{payload, TensorError};

pub(crate) fn to_tensor(payload: &Payload) -> Result<Tensor, TensorError> {
    let size = |d: &u64| {
        i64::try_from(*d).map_err(|_| TensorError::invalid("receive", format!("a size of {d}")))
    };
    let shape = payload.meta.shape.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    payload::from_bytes(payload.meta.dtype, &shape, payload.bytes.clone())
}

pub(crate) fn to_payload(tensor: &Tensor) -> Result<Payload, TensorError> {
    let dtype: DType = tensor::dtype_of(tensor)?;
    let shape = tensor.size().into_iter().map(|d| d.unsigned_abs()).collect();
    Ok(Payload { meta: TensorMeta { dtype, shape }, bytes: payload::to_bytes(tensor)? })
}

pub(crate) fn to_tensors(payloads: &[Payload]) -> Result<Vec<Tensor>, Failure> {
    payloads.iter().map(to_tensor).collect::<Result<_, _>>().map_err(tensor_failure)
}

pub(crate) fn to_payloads(tensors: &[Tensor]) -> Result<Vec<Payload>, Failure> {
    tensors.iter().map(to_payload).collect::<Result<_, _>>().map_err(tensor_failure)
}

/// Converts nested lists.
pub(super) fn nested<T>(
    lists: &[Vec<Payload>],
    each: impl Fn(&[Payload]) -> Result<Vec<T>, Failure>,
) -> Result<Vec<Vec<T>>, Failure> {
    lists.iter().map(|list| each(list)).collect()
}

/// Converts sums of gradients, which may be compressed.
pub(crate) fn decompressed_sums(payloads: &[Payload]) -> Result<Vec<Tensor>, Failure> {
    let sum = |payload| {
        to_tensor(&runtime::decompress(payload).map_err(Failure::new)?).map_err(tensor_failure)
    };
    payloads.iter().map(sum).collect()
}

/// The results of an engine, in the form in which they travel.
pub(crate) fn to_payload_output(
    out: EarlyOutput<Tensor>,
) -> Result<EarlyOutput<Payload>, TensorError> {
    let mut problem = None;
    let empty = || Payload {
        meta: TensorMeta { dtype: DType::Float32, shape: vec![0] },
        bytes: Bytes::new(),
    };
    let out = out.map(|tensor| {
        to_payload(&tensor).unwrap_or_else(|e| {
            problem.get_or_insert(e);
            empty()
        })
    });
    problem.map_or(Ok(out), Err)
}

pub(crate) fn to_tensors_by_stage(
    payloads: &[(StageId, Vec<Payload>)],
) -> Result<TensorsByStage, Failure> {
    payloads.iter().map(|(stage, list)| Ok((*stage, to_tensors(list)?))).collect()
}

pub(crate) fn tied_outcome(tensors: &TensorsByStage) -> Result<Outcome<Payload>, Failure> {
    let each = tensors.iter().map(|(stage, list)| Ok((*stage, to_payloads(list)?)));
    Ok(Outcome::Tied { tensors: each.collect::<Result<_, Failure>>()? })
}

pub(crate) fn tensor_failure(e: TensorError) -> Failure {
    Failure { kind: failure_kind(&e), ..Failure::new(e.to_string()) }
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
            Failure { kind: failure_kind(source), ..Failure::new(e.to_string()) }
        }
        other => Failure::new(other.to_string()),
    }
}
