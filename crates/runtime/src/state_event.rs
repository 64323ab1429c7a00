//! The parts of a state, as the driver hands them to a stream.

use link::Payload;
use pipeline::ids::WorkerId;
use pipeline::message::Failure;
use pipeline::TensorMeta;
use std::sync::atomic::{AtomicU64, Ordering};

/// A whole tensor of a state, a replica's shard of it, or its hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateHead {
    /// The worker that sends it.
    pub worker: WorkerId,
    /// Its [name](pipeline::StateName).
    pub name: String,
    /// Its dtype and shape.
    pub meta: TensorMeta,
}

/// One of the tensors of the [heads](StateHead), or a slice of one.
#[derive(Debug)]
pub struct StatePart {
    /// The worker that sent it.
    pub worker: WorkerId,
    /// Its [name](pipeline::StateName).
    pub name: String,
    /// The tensor. A slice is flat.
    pub payload: Payload,
}

/// The number of a stream among those of this process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct FetchId(pub(crate) u64);

impl FetchId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        FetchId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What the driver hands to a stream.
pub(crate) enum StateEvent {
    /// Every worker has answered.
    Heads(Vec<StateHead>),
    /// A part of this request arrived.
    Part { request: u64, part: StatePart },
    /// All parts have come, or no more will.
    End(Result<(), Failure>),
}
